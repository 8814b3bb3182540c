-- The turns that a boundary stopped, as it wrote them down: for its answer, should it be asked for again.
local function stopped_turns(ended_turns)
  local turns = {}
  for turn in string.gmatch(ended_turns or '', '%S+') do turns[#turns + 1] = turn end
  return turns
end

-- Ends a generation in one step: its id stops resolving, its turns are fenced, its waiters sent home, its transcript gone.
-- What is bulky beyond that is put aside for session_erase. `at` has the keys; `all` is what split_live and
-- split_waiters found; `how` has cid, generation (the one that ends), nonce (of the next), reason, token, mailboxes.
local function retire(at, all, how, now)
  redis.call('HSET', at.conversation, 'session', '', 'generation', digits(how.generation + 1), 'nonce', how.nonce,
    'ended_by', how.reason, 'ended_token', how.token, 'ended_turns', table.concat(all.alive, ' '))
  redis.call('HDEL', at.conversation, 'notes', 'edit_token')
  redis.call('ZREM', at.sessions, how.cid)
  redis.call('ZADD', at.tombstones, digits(now), how.cid)
  for _, turn in ipairs(all.alive) do
    redis.call('ZREM', at.running, turn)
    redis.call('SADD', at.cancelling, turn)
  end
  for _, turn in ipairs(all.dead) do
    redis.call('ZREM', at.running, turn)
  end
  leave_queue(at.queue, at.waiting, all.gone)
  for _, member in ipairs(all.waiters) do
    leave_queue(at.queue, at.waiting, {member})
    wake(how.mailboxes, member)
  end
  redis.call('UNLINK', at.live, at.messages)
  if redis.call('EXISTS', at.turns) == 1 then
    if redis.call('EXISTS', at.leftovers) == 1 then
      redis.call('ZUNIONSTORE', at.leftovers, 2, at.leftovers, at.turns)
      redis.call('UNLINK', at.turns)
    else
      redis.call('RENAME', at.turns, at.leftovers)
    end
    redis.call('SADD', at.erasing, how.cid)
  end
end
