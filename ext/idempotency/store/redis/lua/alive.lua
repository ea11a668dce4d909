-- Await: whether a run lives.
--
-- ARGV[7]  namespace, ARGV[8] digest of the id, ARGV[9] token
--
-- Returns how many milliseconds of its lease are left, 0 when it is over.
local stop = enter(ARGV[7])
if stop then
  return stop
end
local _, rec = locate(ARGV[7], ARGV[8])
if not rec or rec[STATUS] ~= RUNNING or rec[TOKEN] ~= ARGV[9] then
  return leave(0)
end
return leave(math.max(rec[LEASE] - now, 0))
