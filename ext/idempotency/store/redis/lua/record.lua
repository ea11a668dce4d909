-- Records: how they are found, kept and ended.
--
-- A record is a packed list. Its id is kept whole for the operator's list; its
-- name in the hash is a digest of fixed length.
local STATUS, TOKEN, FINGERPRINT, NONCE, ANSWERS, SINCE = 1, 2, 3, 4, 5, 6
local LEASE, CONTINUED, QUESTION, PRINCIPAL, KEY = 7, 8, 9, 10, 11

-- What a principal has in a namespace is one number: the records times SHARE
-- and those of them that are open.
local SHARE = 67108864 -- 2^26

-- look returns the record of a digest in a namespace, or nil. When the
-- namespace has lost its records, by whatever hand, it is not held any more,
-- and the second result says so.
local function look(ns, digest)
  local found = redis.call('HMGET', part(ns, 'records'), '', digest)
  if not found[1] then
    slow().start_over(now)
    return nil, true
  end
  return found[2] and cmsgpack.unpack(found[2])
end

-- locate returns the namespace of a key, or nil when it is not held, and its
-- record, or nil. A key without a namespace is looked up in all, and a new one
-- belongs to the current.
local function locate(name, digest)
  if name ~= '' then
    local ns = space(name)
    if not ns then
      return nil
    end
    local rec, lost = look(ns, digest)
    return not lost and ns or nil, rec
  end
  for _, each in ipairs(names()) do
    local ns = space(each)
    local rec, lost = look(ns, digest)
    if rec then
      return ns, rec
    elseif lost then
      break
    end
  end
  return space(N[CURRENT])
end

local function save(ns, digest, rec)
  redis.call('HSET', part(ns, 'records'), digest, cmsgpack.pack(rec))
  dirty = true
end

-- wake tells those who wait for a run that it is over.
local function wake(digest, token)
  redis.call('PUBLISH', BASE .. 'w:' .. digest, token)
end

-- forget_question removes the question of a call that asks no more.
local function forget_question(ns, digest, rec)
  if rec[QUESTION] >= 0 then
    redis.call('HDEL', part(ns, 'outcomes'), digest)
    add(ns, QUESTIONS, -rec[QUESTION])
  end
  rec[QUESTION], rec[NONCE], rec[ANSWERS] = -1, '', ''
end

-- evict drops the oldest outcomes, of the oldest namespace first, until the
-- rest fits. It stops after some, so that no step takes long: what is too much
-- then goes with the next ones.
local function evict(most)
  local steps = 1000
  for i = #names(), 1, -1 do
    local ns = space(held[i])
    while N[TOTAL + BYTES] > most and steps > 0 do
      local digest = redis.call('LPOP', part(ns, 'order'))
      if not digest then
        break
      end
      add(ns, BYTES, -redis.call('HSTRLEN', part(ns, 'outcomes'), digest))
      redis.call('HDEL', part(ns, 'outcomes'), digest)
      steps = steps - 1
    end
  end
end

-- finish gives a record its final state.
local function finish(ns, digest, principal, rec, state, outcome, most)
  open_door() -- an end can always be recorded
  if rec[STATUS] ~= UNKNOWN then
    add(ns, OPEN, -1)
    redis.call('HINCRBY', part(ns, 'principals'), principal, -1)
  end
  forget_question(ns, digest, rec)
  rec[STATUS], rec[SINCE], rec[LEASE] = state, now, 0
  if outcome and #outcome <= most then
    redis.call('HSET', part(ns, 'outcomes'), digest, outcome)
    redis.call('RPUSH', part(ns, 'order'), digest)
    add(ns, BYTES, #outcome)
    if N[TOTAL + BYTES] > most then
      evict(most)
    end
  end
  save(ns, digest, rec)
  ns[LAST], changed[ns[NAME]] = now, ns
end

-- lapse ends a run whose lease has passed: nobody will learn from it how it
-- ended, unless it tells after all.
local function lapse(ns, digest, principal, rec)
  if rec[STATUS] == RUNNING and now >= rec[LEASE] then
    finish(ns, digest, principal, rec, UNKNOWN, nil, 0)
    wake(digest, rec[TOKEN])
  end
end
