-- Stops the script before its first write when a key holds another type than the key table says.
local function expect(kind, key)
  local found = redis.call('TYPE', key)
  found = type(found) == 'table' and found.ok or found
  if found ~= kind and found ~= 'none' then
    error('key ' .. key .. ' holds a ' .. found .. ', not a ' .. kind)
  end
end
