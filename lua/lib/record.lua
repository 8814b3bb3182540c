-- What is recorded of a host's own session id; nil when nothing is.
local function read_record(record)
  local names = {'source', 'key', 'cid', 'generation', 'nonce', 'parent', 'relation', 'ended', 'ended_token', 'bumped',
    'ended_generation'}
  local values = redis.call('HMGET', record, unpack(names))
  if not values[1] then
    return nil
  end
  local found = {}
  for i, name in ipairs(names) do found[name] = values[i] or '' end
  return found
end

-- Forks go their own way: they are not their parent's conversation.
local function is_fork(relation)
  return relation == 'branch' or relation == 'delegate' or relation == 'tool' or relation == 'review'
end
