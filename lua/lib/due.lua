-- Since when nobody is at work in a conversation: its last activity, or the end of the lease of a turn that died.
local function rests_since(active_ms, dead, running)
  for _, turn in ipairs(dead) do
    active_ms = math.max(active_ms, tonumber(redis.call('ZSCORE', running, turn) or 0))
  end
  return active_ms
end

-- The boundary that a resting conversation has passed: 'idle', 'daily', or false. `daily` lists the moments around now, so
-- that the store's clock, not the caller's, decides which is the latest that is past.
local function boundary_due(active_ms, now, idle_ms, daily)
  if idle_ms > 0 and now - active_ms > idle_ms then
    return 'idle'
  end
  for moment in string.gmatch(daily, '[^,]+') do
    local boundary_ms = integer(moment, 'daily')
    if active_ms < boundary_ms and boundary_ms <= now then
      return 'daily'
    end
  end
  return false
end
