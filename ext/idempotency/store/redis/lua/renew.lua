-- Renew: extends the lease of a run.
--
-- ARGV[7]  namespace, ARGV[8] digest of the id, ARGV[9] token
-- ARGV[10] milliseconds from now
--
-- Returns 1, or 0 when the record does not belong to the run any more.
local stop = enter(ARGV[7])
if stop then
  return stop
end
local ns, rec = locate(ARGV[7], ARGV[8])
if not rec or rec[STATUS] ~= RUNNING or rec[TOKEN] ~= ARGV[9] then
  return leave(0)
end
open_door()
rec[LEASE] = now + tonumber(ARGV[10])
save(ns, ARGV[8], rec)
hold(ns, rec[LEASE] + ns[RETENTION])
return leave(1)
