-- Reserve.
--
-- ARGV[7]   namespace of the key, '' for none
-- ARGV[8]   digest of the id, ARGV[9] digest of the principal
-- ARGV[10]  fingerprint, ARGV[11] token, ARGV[12] lease in milliseconds
-- ARGV[13]  nonce or '', ARGV[14] answers, ARGV[15] '1' to look only
-- ARGV[16]  principal, ARGV[17] key
-- ARGV[18]  most records, ARGV[19] of a principal, ARGV[20] open calls of a
--           principal, ARGV[21] bytes of questions
--
-- Returns the verdict and what belongs to it.
local RUN, JOINABLE, KNOWN, ASKED, MISMATCH, NOT_HELD, SHUT, NO_ROOM, FREE = 1, 2, 3, 4, 5, 6, 7, 8, 9

local digest, token, peek = ARGV[8], ARGV[11], ARGV[15] == '1'

-- answer is for verdicts with a record.
local function answer(verdict, ns, rec)
  local outcome = false
  if rec[STATUS] ~= RUNNING and rec[STATUS] ~= UNKNOWN then
    outcome = redis.call('HGET', part(ns, 'outcomes'), digest)
  end
  return leave(verdict, rec[STATUS], rec[TOKEN], rec[NONCE], rec[ANSWERS], outcome)
end

-- run gives a record to this attempt.
local function run(ns, rec)
  rec[LEASE] = now + tonumber(ARGV[12])
  save(ns, digest, rec)
  hold(ns, rec[LEASE] + ns[RETENTION])
  return leave(RUN, rec[CONTINUED])
end

-- known answers an attempt whose key has a record.
local function known(ns, rec)
  if rec[FINGERPRINT] ~= ARGV[10] then
    return leave(MISMATCH)
  elseif rec[STATUS] == RUNNING and rec[TOKEN] == token then
    if peek then
      return leave(RUN, rec[CONTINUED])
    end
    open_door()
    return run(ns, rec) -- its answer was lost
  end
  lapse(ns, digest, ARGV[9], rec)
  if rec[STATUS] == RUNNING then
    return answer(JOINABLE, ns, rec)
  elseif rec[STATUS] == UNKNOWN then
    ns[LAST], changed[ns[NAME]], dirty = now, ns, true
    return answer(KNOWN, ns, rec)
  elseif rec[STATUS] ~= WAITING then
    return answer(KNOWN, ns, rec)
  end
  hold(ns, now + ns[RETENTION])
  if ARGV[13] == '' or ARGV[13] ~= rec[NONCE] then
    return answer(ASKED, ns, rec)
  elseif peek then
    return leave(FREE)
  end
  open_door()
  rec[STATUS], rec[TOKEN], rec[ANSWERS], rec[SINCE], rec[CONTINUED] = RUNNING, token, ARGV[14], now, 1
  return run(ns, rec)
end

-- within_quota reports whether the principal may have one more. Where all
-- records together are within the quota of one there is nothing to add up.
local function within_quota()
  local most, most_open = tonumber(ARGV[19]), tonumber(ARGV[20])
  if N[TOTAL + RECORDS] < most and N[TOTAL + OPEN] < most_open then
    return true
  end
  local records, open = 0, 0
  for _, name in ipairs(names()) do
    local n = tonumber(redis.call('HGET', part(space(name), 'principals'), ARGV[9]) or 0)
    records, open = records + math.floor(n / SHARE), open + n % SHARE
  end
  return records < most and open < most_open
end

-- room_in guesses when there will be room: when the oldest namespace may go,
-- and not so far ahead that a caller who could be served sooner stays away.
local function room_in()
  local ns = space(names()[#held])
  local closes = ns[CLOSES] > 0 and ns[CLOSES] or ns[ROTATES] + ns[CLOSING]
  return math.min(math.max(math.max(closes, ns[LAST]) + ns[RETENTION] - now, 1000), 60000)
end

local function new(ns)
  if ns[CLOSED] == 1 then
    return leave(SHUT, N[CURRENT])
  elseif N[TOTAL + RECORDS] >= tonumber(ARGV[18]) or N[TOTAL + QUESTIONS] >= tonumber(ARGV[21]) or not within_quota() then
    return leave(NO_ROOM, room_in())
  elseif peek then
    return leave(FREE)
  end
  -- First of all, as it is what a server without memory refuses.
  redis.call('HINCRBY', part(ns, 'principals'), ARGV[9], SHARE + 1)
  door = true
  add(ns, RECORDS, 1)
  add(ns, OPEN, 1)
  return run(ns, {RUNNING, token, ARGV[10], ARGV[13], ARGV[14], now, 0, 0, -1, ARGV[16], ARGV[17]})
end

local stop = enter(ARGV[7])
if stop then
  return stop
end
local ns, rec = locate(ARGV[7], digest)
if not ns then
  return leave(NOT_HELD, N[CURRENT])
elseif rec then
  return known(ns, rec)
end
return new(ns)
