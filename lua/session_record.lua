#!lua
-- Records a host's own session id: which declared conversation it belongs to, and in which generation. A bound id stays bound.
--
-- KEYS[1] record        hash: what is recorded of the id
-- KEYS[2] parent        hash: the same of its parent; the id's own when it has none
-- KEYS[3] conversation  hash: the declared conversation; the id's own when no key is given
-- KEYS[4] tombstones    zset: cid by time of retirement, or of its last record; holds what is not open, so that prune finds it
-- KEYS[5] retired       set: digests of retired client-chosen ids
-- ARGV[1] source        of the id
-- ARGV[2] key           the declared key, or ''
-- ARGV[3] cid           the declared conversation's id, or ''
-- ARGV[4] parent_id     the parent's id, or ''
-- ARGV[5] relation      none, compression, branch, delegate, tool or review
-- ARGV[6] nonce         of the first generation, should there be none, and of the id's own scope
-- ARGV[7] retired_id    digest of the id
-- ARGV[8] keep_ms       how long the record is kept after its last use
-- -> {'recorded', now, source, key, cid, generation, nonce, relation, ended}   as it stands now
-- -> {'not_found', now}    the id is retired

--- @include lib/clock
--- @include lib/expect
--- @include lib/number
--- @include lib/record

local record, parent, conversation, tombstones, retired = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local source, key, cid, relation, nonce = ARGV[1], ARGV[2], ARGV[3], ARGV[5], ARGV[6]
local keep_ms = integer(ARGV[8], 'keep_ms')
local now = store_ms()

for _, name in ipairs({record, parent, conversation}) do expect('hash', name) end
expect('zset', tombstones)
expect('set', retired)

if redis.call('SISMEMBER', retired, ARGV[7]) == 1 then
  return {'not_found', now}
end

local known = read_record(record)
relation = known and known.relation or relation
local origin = relation == 'compression' and ARGV[4] ~= '' and read_record(parent) or nil
if origin and is_fork(origin.relation) and not (known and known.cid ~= '') then
  relation = origin.relation -- a fork that was compressed goes on going its own way
end
local bound = {source = source, key = '', cid = '', generation = '1', nonce = nonce}
if known and (known.cid ~= '' or cid == '' or is_fork(relation)) then
  bound = known
elseif origin and origin.cid ~= '' then
  -- What goes on after a compression is the same conversation, in the generation it was in.
  bound = origin
elseif cid ~= '' and not is_fork(relation) then
  local found = redis.call('HMGET', conversation, 'generation', 'nonce')
  bound.key, bound.cid = key, cid
  if found[1] then
    bound.generation, bound.nonce = digits(integer(found[1], 'generation')), found[2]
  else
    redis.call('HSET', conversation, 'kind', 'd', 'source', source, 'session', '', 'generation', '1', 'nonce', nonce)
    redis.call('ZADD', tombstones, digits(now), cid)
  end
end
-- Recorded is used: a conversation without a session of ours is kept from its last record on.
if bound.cid ~= '' then redis.call('ZADD', tombstones, 'XX', digits(now), bound.cid) end
redis.call('HSET', record, 'source', bound.source, 'key', bound.key, 'cid', bound.cid, 'generation', bound.generation,
  'nonce', bound.nonce, 'parent', known and known.parent or ARGV[4], 'relation', relation, 'ended', known and known.ended or '')
redis.call('PEXPIRE', record, digits(keep_ms))
return {'recorded', now, bound.source, bound.key, bound.cid, bound.generation, bound.nonce, relation, known and known.ended or ''}
