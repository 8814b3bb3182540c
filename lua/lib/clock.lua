-- The store's clock in ms: the only clock that decides anything.
local function store_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
