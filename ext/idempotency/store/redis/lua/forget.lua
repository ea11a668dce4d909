-- One page of DeleteOutcomes.
--
-- ARGV[7]  namespace, ARGV[8] cursor, ARGV[9] principal
--
-- Returns the next cursor and how many outcomes were deleted.
local stop = enter(ARGV[7])
if stop then
  return stop
end
local ns = space(ARGV[7])
if not ns then
  return leave('0', 0)
end
local outcomes = part(ns, 'outcomes')
local page = redis.call('HSCAN', part(ns, 'records'), ARGV[8], 'COUNT', 500)
local n = 0
local function forget(digest, rec)
  if rec[PRINCIPAL] ~= ARGV[9] or rec[STATUS] ~= COMPLETED and rec[STATUS] ~= NO_EFFECT then
    return
  end
  local bytes = redis.call('HSTRLEN', outcomes, digest)
  if redis.call('HDEL', outcomes, digest) == 1 then
    add(ns, BYTES, -bytes)
    n = n + 1
  end
end

for i = 1, #page[2], 2 do
  if page[2][i] ~= '' then
    forget(page[2][i], cmsgpack.unpack(page[2][i + 1]))
  end
end
return leave(page[1], n)
