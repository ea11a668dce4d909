-- Resolve: an operator's word on an unknown outcome.
--
-- ARGV[7]   namespace, ARGV[8] digest of the id, ARGV[9] digest of the
--           principal, ARGV[10] a token for the resolution
-- ARGV[11]  the final state
-- ARGV[12]  '1' when there is an outcome, ARGV[13] the outcome
-- ARGV[14]  bytes of outcomes that may be kept
--
-- Returns 'resolved', 'absent' or 'other'.
local digest, state = ARGV[8], tonumber(ARGV[11])
local stop = enter(ARGV[7])
if stop then
  return stop
end
local ns, rec = locate(ARGV[7], digest)
if not rec then
  return leave('absent')
end
lapse(ns, digest, ARGV[9], rec)
if rec[STATUS] == state and rec[TOKEN] == ARGV[10] then
  return leave('resolved') -- told twice: the answer was lost
elseif rec[STATUS] ~= UNKNOWN then
  return leave('other')
end
-- With another token the run itself cannot change the record any more.
rec[TOKEN] = ARGV[10]
finish(ns, digest, ARGV[9], rec, state, ARGV[12] == '1' and ARGV[13] or nil, tonumber(ARGV[14]))
return leave('resolved')
