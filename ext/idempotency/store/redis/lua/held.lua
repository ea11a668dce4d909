-- Returns the names of the namespaces that are held, the newest first.
local stop = enter('')
if stop then
  return stop
end
return leave(names())
