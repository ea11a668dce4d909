-- One page of List: records of a namespace.
--
-- ARGV[7]  namespace, ARGV[8] cursor
-- ARGV[9]  '1' to select a principal, ARGV[10] the principal
-- ARGV[11+] states
--
-- Returns the next cursor and, for every record, principal, key, state, since
-- and end of the lease, by the server's clock.
local stop = enter(ARGV[7])
if stop then
  return stop
end
local ns = space(ARGV[7])
if not ns then
  return leave('0', {})
end

local wanted = {}
for i = 11, #ARGV do
  wanted[tonumber(ARGV[i])] = true
end

local entries = {}
local function select(rec)
  local state, since = rec[STATUS], rec[SINCE]
  if state == RUNNING and now >= rec[LEASE] then
    state, since = UNKNOWN, rec[LEASE]
  end
  if wanted[state] and (ARGV[9] ~= '1' or rec[PRINCIPAL] == ARGV[10]) then
    local lease = state == RUNNING and rec[LEASE] - N[SHIFT] or 0
    entries[#entries + 1] = {rec[PRINCIPAL], rec[KEY], state, since - N[SHIFT], lease}
  end
end

local page = redis.call('HSCAN', part(ns, 'records'), ARGV[8], 'COUNT', 500)
for i = 1, #page[2], 2 do
  if page[2][i] ~= '' then
    select(cmsgpack.unpack(page[2][i + 1]))
  end
end
return leave(page[1], entries)
