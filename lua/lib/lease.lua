-- How long a turn's lease still runs, in ms; 0 when nobody may count on it any more.
local function lease_left(running, turn, now)
  return math.max(0, tonumber(redis.call('ZSCORE', running, turn) or 0) - now)
end

-- Splits the granted turns of a conversation into those with a live lease and those whose lease ended.
local function split_live(live, running, now, lease_ms)
  local alive, dead, members = {}, {}, redis.call('SMEMBERS', live)
  if members[1] then
    shorten(running, now, lease_ms)
  end
  for _, turn in ipairs(members) do
    local side = lease_left(running, turn, now) > 0 and alive or dead
    side[#side + 1] = turn
  end
  return alive, dead
end
