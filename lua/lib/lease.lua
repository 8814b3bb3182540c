-- How long a turn's lease still runs, in ms; 0 when nobody may count on it any more.
-- A deadline further away than one lease was written before the clock stepped back, and is read as one lease.
local function lease_left(running, turn, now, lease_ms)
  local until_ms = tonumber(redis.call('ZSCORE', running, turn) or 0)
  return math.max(0, math.min(until_ms - now, lease_ms))
end

-- Splits the granted turns of a conversation into those with a live lease and those whose lease ended.
local function split_live(live, running, now, lease_ms)
  local alive, dead = {}, {}
  for _, turn in ipairs(redis.call('SMEMBERS', live)) do
    local side = lease_left(running, turn, now, lease_ms) > 0 and alive or dead
    side[#side + 1] = turn
  end
  return alive, dead
end
