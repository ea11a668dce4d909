-- Record: how a run ended.
--
-- ARGV[7]   namespace, ARGV[8] digest of the id, ARGV[9] digest of the
--           principal, ARGV[10] token
-- ARGV[11]  event, ARGV[12] nonce of a question
-- ARGV[13]  '1' when there is an outcome, ARGV[14] the outcome
-- ARGV[15]  bytes of outcomes that may be kept
--
-- Returns 1, or 0 when another run or an operator has decided, or 2 for a
-- rejection by a run that answers no question.
local ASK, REJECT = '5', '6'
local FINAL = {['3'] = COMPLETED, ['4'] = NO_EFFECT, ['8'] = UNKNOWN} -- Complete, DeclareNoEffect, Lose

local digest, event, nonce = ARGV[8], ARGV[11], ARGV[12]
local outcome = ARGV[13] == '1' and ARGV[14] or nil

-- told_twice reports whether the record is what this end made of it.
local function told_twice(rec)
  if rec[STATUS] == WAITING then
    return event == REJECT or event == ASK and nonce == rec[NONCE]
  end
  return rec[STATUS] ~= RUNNING and rec[STATUS] == FINAL[event]
end

local function ask(ns, rec)
  open_door()
  if event == ASK then
    forget_question(ns, digest, rec)
    rec[NONCE] = nonce
    if outcome then
      redis.call('HSET', part(ns, 'outcomes'), digest, outcome)
      rec[QUESTION] = #outcome
      add(ns, QUESTIONS, #outcome)
    end
  end
  rec[STATUS], rec[SINCE], rec[LEASE], rec[ANSWERS] = WAITING, now, 0, ''
  save(ns, digest, rec)
  hold(ns, now + ns[RETENTION])
end

local stop = enter(ARGV[7])
if stop then
  return stop
end
local ns, rec = locate(ARGV[7], digest)
if not rec or rec[TOKEN] ~= ARGV[10] then
  return leave(0)
end
local state, final = rec[STATUS], FINAL[event]
if state == RUNNING and event == REJECT and rec[CONTINUED] ~= 1 then
  return leave(2)
elseif state == RUNNING and not final then
  ask(ns, rec)
elseif state == RUNNING or state == UNKNOWN and final and final ~= UNKNOWN then
  finish(ns, digest, ARGV[9], rec, final, outcome, tonumber(ARGV[15]))
elseif told_twice(rec) then
  return leave(1)
else
  return leave(0)
end
wake(digest, rec[TOKEN])
return leave(1)
