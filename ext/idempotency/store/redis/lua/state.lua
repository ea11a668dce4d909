-- What every script begins with: the state of the store, its clock and its
-- namespaces. A script is one atomic step, so nothing here can interleave.
--
-- KEYS[1]  the hash that holds the state; all other names share its hash tag
-- ARGV[1]  a name for a new namespace, should one be made
-- ARGV[2]  the epoch that the caller knows, and
-- ARGV[3]  the newest sequence number of that epoch that it was told
-- ARGV[4]  '1' when the caller wants to judge a new incarnation of the server
-- ARGV[5]  milliseconds to add to the server's clock (tests)
-- ARGV[6]  retention, rotation and closing time of a new namespace, in
--          milliseconds, with blanks between them
--
-- No text is ever made into Lua, and no name of a key is made of what a client
-- sent: namespaces are named by the store, records by digests.
--
-- Every call runs this text anew, and what it makes costs time. So what is
-- rarely needed is not even made into a function before it is: see slow.

local STATE = KEYS[1]
local BASE = string.sub(STATE, 1, -6) -- without 'state'

-- As in package store.
local RUNNING, WAITING, COMPLETED, NO_EFFECT, UNKNOWN = 1, 2, 3, 4, 5

-- A namespace: how many records it has, how many of them run or wait, the
-- bytes of its outcomes and of its questions; when a call in it ended last;
-- until when those that are open hold it at most; how long its records are
-- kept; how long it closes, from when on; when it is not the current one any
-- more; whether it is closed; its name.
local RECORDS, OPEN, BYTES, QUESTIONS, LAST, HOLD = 1, 2, 3, 4, 5, 6
local RETENTION, CLOSING, CLOSES, ROTATES, CLOSED, NAME = 7, 8, 9, 10, 11, 12
local spaces, changed = {}, {} -- those that were read, and to be written

-- The numbers of the store: how many steps have changed it, the instant of the
-- last one, what is added to the server's clock, when to look at the
-- namespaces again; the totals of their counters; the name of the current one.
local SEQ, NOW, SHIFT, LOOK, TOTAL, CURRENT = 1, 2, 3, 4, 4, 9
local N

local now     -- the instant of this step
local witness -- names this incarnation of the server
local epoch   -- names the life of the records since they began anew
local held    -- the names of the namespaces, the newest first; see names
local dirty   -- whether anything changed
local moved   -- and which namespaces are held
local begun   -- and everything, as it is new
local door    -- see open_door

local function part(ns, what)
  return BASE .. ns[NAME] .. ':' .. what
end

-- names returns the names of the namespaces that are held, the newest first.
local function names()
  held = held or cmsgpack.unpack(redis.call('HGET', STATE, 'held'))
  return held
end

-- space returns the namespace of a name, or nil when it is not held.
local function space(name)
  local ns = spaces[name]
  if not ns then
    local raw = redis.call('HGET', STATE, 'n:' .. name)
    ns = raw and cmsgpack.unpack(raw)
    spaces[name] = ns
  end
  return ns
end

-- add changes a counter of a namespace, and the total.
local function add(ns, what, n)
  ns[what] = ns[what] + n
  N[TOTAL + what] = N[TOTAL + what] + n
  changed[ns[NAME]], dirty = ns, true
end

-- hold keeps the namespace of an open call until the instant.
local function hold(ns, till)
  if till > ns[HOLD] then
    ns[HOLD], changed[ns[NAME]], dirty = till, ns, true
  end
end

-- open_door makes one harmless removal, which a server that is out of memory
-- allows; it then allows what the same script writes after it. So only what
-- takes room for good, a new record, is refused for want of memory.
local function open_door()
  if not door then
    redis.call('HDEL', STATE, '')
    door = true
  end
end

-- slow makes the functions that change which namespaces are held.
local function slow()
  local retention, rotation, closing = string.match(ARGV[6], '(%d+) (%d+) (%d+)')
  retention, rotation, closing = tonumber(retention), tonumber(rotation), tonumber(closing)

  local function begin_namespace()
    local ns = {0, 0, 0, 0, 0, 0, retention, closing, 0, now + rotation, 0, ARGV[1]}
    table.insert(held, 1, ns[NAME])
    N[CURRENT], spaces[ns[NAME]], changed[ns[NAME]] = ns[NAME], ns, ns
    moved, dirty = true, true
    open_door()
    redis.call('HSET', part(ns, 'records'), '', '') -- tells none from lost: see look
  end

  local function unlink(name)
    local of = BASE .. name
    redis.call('UNLINK', of .. ':records', of .. ':outcomes', of .. ':order', of .. ':principals')
  end

  -- Records were lost, or may have been: no namespace from before is held.
  local function start_over(at)
    for _, name in ipairs(held) do
      unlink(name)
    end
    redis.call('DEL', STATE)
    now, N, held, spaces, changed = at, {0, at, 0, 0, 0, 0, 0, 0, ''}, {}, {}, {}
    epoch, begun = ARGV[1], true
    begin_namespace()
  end

  -- A closed namespace has to be held until retention has passed since it
  -- closed and since a call in it ended, and for its open calls: a question
  -- until retention has passed since the last attempt, a run until it has
  -- passed since its lease.
  local function needed(ns)
    return now < ns[CLOSES] + ns[RETENTION] or ns[LAST] > 0 and now < ns[LAST] + ns[RETENTION] or
      ns[OPEN] > 0 and now < ns[HOLD]
  end

  -- From here on the namespace is not held; what it was made of goes in the
  -- same step, its memory in the background.
  local function drop(ns)
    for what = RECORDS, QUESTIONS do
      N[TOTAL + what] = N[TOTAL + what] - ns[what]
    end
    spaces[ns[NAME]], changed[ns[NAME]] = nil, nil
    redis.call('HDEL', STATE, 'n:' .. ns[NAME])
    unlink(ns[NAME])
  end

  local function rotate()
    local current = space(N[CURRENT])
    if now >= current[ROTATES] then
      current[CLOSES], changed[current[NAME]] = now + current[CLOSING], current
      begin_namespace()
    end
    local kept = {held[1]}
    for i = 2, #held do
      local ns = space(held[i])
      if ns[CLOSED] == 0 and now >= ns[CLOSES] then
        ns[CLOSED], changed[ns[NAME]] = 1, ns -- for good: the clock cannot reopen it
      end
      if ns[CLOSED] == 1 and not needed(ns) then
        drop(ns)
      else
        kept[#kept + 1] = held[i]
      end
    end
    held = kept
    -- To look later than the instant keeps records longer, never shorter, and
    -- spares the other calls.
    N[LOOK] = now + math.floor(math.min(retention, rotation, closing, 60000) / 64)
    moved, dirty = true, true
  end

  names()
  return {start_over = start_over, rotate = rotate}
end

-- read takes the state apart that enter has found. It returns an answer when
-- the step cannot be made.
local function read(v, wall)
  if v[1] ~= witness and ARGV[4] == '1' then
    return {'moved', v[1], witness}
  end
  epoch, N = v[2], cmsgpack.unpack(v[3])
  -- Another process may have lost the last writes, and a number that goes back
  -- is that of an older copy.
  if v[1] ~= witness or epoch == ARGV[2] and N[SEQ] < tonumber(ARGV[3]) then
    slow().start_over(wall)
    return nil
  end
  -- The clock never goes back: a step back of the server's is taken out, as
  -- far as it can be noticed.
  now = wall + N[SHIFT]
  if now < N[NOW] then
    N[SHIFT], now, dirty = N[NOW] - wall, N[NOW], true
  elseif now >= N[NOW] + 1000 then
    dirty = true
  end
  if now >= N[LOOK] then
    slow().rotate()
  end
end

-- enter(name) reads the state, and with it the namespace of a name. It returns
-- an answer when the step cannot be made here.
local function enter(name)
  local info = redis.call('INFO', 'replication')
  if not string.find(info, 'role:master', 1, true) then
    return {'replica'}
  end
  local _, at = string.find(info, 'master_replid:', 1, true)
  witness = string.sub(info, at + 1, at + 40)
  local t = redis.call('TIME')
  local wall = t[1] * 1000 + math.floor(t[2] / 1000) + ARGV[5]
  local v = redis.call('HMGET', STATE, 'witness', 'epoch', 'numbers', 'n:' .. name)
  if not v[1] then -- the first use, or everything is gone
    held = {}
    slow().start_over(wall)
    return nil
  end
  if v[4] then
    spaces[name] = cmsgpack.unpack(v[4])
  end
  return read(v, wall)
end

-- leave(...) writes what changed and makes the answer.
local function leave(...)
  if dirty then
    open_door()
    N[SEQ], N[NOW] = N[SEQ] + 1, now
    local set, n = {'HSET', STATE, 'numbers', cmsgpack.pack(N)}, 4
    for name, ns in pairs(changed) do
      set[n + 1], set[n + 2], n = 'n:' .. name, cmsgpack.pack(ns), n + 2
    end
    if moved then
      set[n + 1], set[n + 2], n = 'held', cmsgpack.pack(held), n + 2
    end
    if begun then
      set[n + 1], set[n + 2], set[n + 3], set[n + 4] = 'witness', witness, 'epoch', epoch
    end
    redis.call(unpack(set))
  end
  return {'ok', epoch, N[SEQ], ...}
end
