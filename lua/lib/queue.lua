-- Splits the waiters of a conversation, in order of arrival, into those that are still vouched for and those that are
-- gone.
local function split_waiters(queue, waiting, now, vouch_ms)
  local alive, gone, members = {}, {}, redis.call('ZRANGE', queue, 0, -1)
  if members[1] then
    shorten(waiting, now, vouch_ms)
  end
  for _, member in ipairs(members) do
    local until_ms = tonumber(redis.call('ZSCORE', waiting, string.match(member, '^[^@]*')) or 0)
    local side = until_ms > now and alive or gone
    side[#side + 1] = member
  end
  return alive, gone
end

local function leave_queue(queue, waiting, members)
  for _, member in ipairs(members) do
    redis.call('ZREM', queue, member)
    redis.call('ZREM', waiting, string.match(member, '^[^@]*'))
  end
end

-- Tells a waiter's replica to ask again now. Only for speed: a lost message costs the waiter one poll.
local function wake(mailboxes, member)
  local turn, replica = string.match(member, '^([^@]*)@(.*)$')
  redis.call('PUBLISH', mailboxes .. replica, 'wake ' .. turn)
end

-- Drops the waiters that are gone and wakes the first that is not.
local function wake_next(queue, waiting, now, vouch_ms, mailboxes)
  local alive, gone = split_waiters(queue, waiting, now, vouch_ms)
  leave_queue(queue, waiting, gone)
  if alive[1] then
    wake(mailboxes, alive[1])
  end
end
