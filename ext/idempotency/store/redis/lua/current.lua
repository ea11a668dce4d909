-- Current: the namespace that takes new keys. Returns its name and retention.
local stop = enter('')
if stop then
  return stop
end
local ns = space(N[CURRENT])
return leave(ns[NAME], ns[RETENTION])
