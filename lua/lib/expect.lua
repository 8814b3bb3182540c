-- Stops the script before its first write when a key holds another type than the key table says. Its size is asked for
-- because that is the cheapest read that another type refuses. Returns the size, 0 without the key.
local size_of = {hash = 'HLEN', list = 'LLEN', set = 'SCARD', stream = 'XLEN', zset = 'ZCARD'}

local function expect(kind, key)
  local size = redis.pcall(size_of[kind], key)
  if type(size) ~= 'number' then
    local found = redis.call('TYPE', key)
    if (type(found) == 'table' and found.ok or found) == kind then
      return redis.call(size_of[kind], key) -- refused for another reason, which is told as it is
    end
    error('key ' .. key .. ' holds a ' .. (type(found) == 'table' and found.ok or found) .. ', not a ' .. kind)
  end
  return size
end
