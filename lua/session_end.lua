#!lua flags=allow-oom
-- Ends a host's own session id. The first end wins. A boundary moves its conversation on, once.
--
-- KEYS[1] record        hash: what is recorded of the id
-- KEYS[2] conversation  hash: the declared conversation that it is bound to; the id's own when it is bound to none
-- KEYS[3] live          set: turns of that granted and not ended
-- KEYS[4] turns         zset: turn -> ms until which its record is kept
-- KEYS[5] leftovers     zset: the same, of retired sessions, until erased; receipts are kept
-- KEYS[6] queue         zset: <turn>@<replica> by arrival
-- KEYS[7] messages      list: its transcript
-- KEYS[8] running       zset: turn -> lease deadline, of the tenant
-- KEYS[9] waiting       zset: turn -> ms until which its replica vouches for it
-- KEYS[10] cancelling   set: turns asked to stop
-- KEYS[11] sessions     zset: cid by last activity
-- KEYS[12] tombstones   zset: cid by time of retirement
-- KEYS[13] erasing      set: cids with leftovers
-- ARGV[1] cid           the conversation it is bound to, as read before, or ''
-- ARGV[2] reason        why it ended
-- ARGV[3] boundary      1 when that reason ends a generation
-- ARGV[4] token         the caller's, made before the call: repeated, it is answered as the first time
-- ARGV[5] nonce         for the next generation
-- ARGV[6] keep_ms       how long the record is kept after its last use
-- ARGV[7] lease_ms      length of a lease
-- ARGV[8] vouch_ms      how long a waiter counts after it asked
-- ARGV[9] mailboxes     channel prefix of the replicas' mailboxes
-- ARGV[10] over         none, or accidents: whether an end that nobody decided on gives way to this one
-- ARGV[11] force        1 to move the conversation on although a turn is live or waits in it, 0 to be refused then
-- -> {'ended', now, bumped, generation, {turn...}}   ended by this; bumped is 1 when the conversation moved on, and these
--                                         turns were live in it and are asked to stop
-- -> {'busy', now, holder, left_ms}       a turn is live, or one waits
-- -> {'kept', now, reason}                it had ended before, by that; nothing done
-- -> {'unknown', now}                     nothing is recorded of it
-- -> {'changed', now, cid}                it was bound meanwhile, to that conversation; ask again

--- @include lib/clock
--- @include lib/expect
--- @include lib/number
--- @include lib/deadline
--- @include lib/lease
--- @include lib/queue
--- @include lib/retire
--- @include lib/record

local record, cid, reason, token = KEYS[1], ARGV[1], ARGV[2], ARGV[4]
local at = {conversation = KEYS[2], live = KEYS[3], turns = KEYS[4], leftovers = KEYS[5], queue = KEYS[6], messages = KEYS[7],
  running = KEYS[8], waiting = KEYS[9], cancelling = KEYS[10], sessions = KEYS[11], tombstones = KEYS[12], erasing = KEYS[13]}
local keep_ms, lease_ms, vouch_ms = integer(ARGV[6], 'keep_ms'), integer(ARGV[7], 'lease_ms'), integer(ARGV[8], 'vouch_ms')
local now = store_ms()

expect('hash', record)
expect('hash', at.conversation)
for _, key in ipairs({at.turns, at.leftovers, at.queue, at.running, at.waiting, at.sessions, at.tombstones}) do
  expect('zset', key)
end
for _, key in ipairs({at.live, at.cancelling, at.erasing}) do expect('set', key) end
expect('list', at.messages)

local known = read_record(record)
if not known then
  return {'unknown', now}
elseif known.ended ~= '' and known.ended_token == token then
  local told = redis.call('HMGET', at.conversation, 'ended_token', 'ended_turns')
  local stopped = told[1] == token and stopped_turns(told[2]) or {}
  return {'ended', now, integer(known.bumped, 'bumped'), known.ended_generation, stopped}
end
local accident = known.ended == 'agent_close' or known.ended == 'ws_orphan_reap'
if known.ended ~= '' and not (accident and ARGV[10] == 'accidents') then
  return {'kept', now, known.ended}
elseif known.cid ~= cid then
  return {'changed', now, known.cid}
end

-- The conversation moves on when the reason is a boundary and the generation the id was bound in is still the current one.
local found = redis.call('HMGET', at.conversation, 'generation', 'nonce', 'holder')
local current = known.cid ~= '' and found[1] == known.generation and found[2] == known.nonce
local bumps = ARGV[3] == '1' and current and not is_fork(known.relation)
local generation = integer(found[1] or known.generation, 'generation')
local all = {alive = {}}
if bumps then
  all.alive, all.dead = split_live(at.live, at.running, now, lease_ms)
  all.waiters, all.gone = split_waiters(at.queue, at.waiting, now, vouch_ms)
  if ARGV[11] ~= '1' and (all.alive[1] or all.waiters[1]) then
    return {'busy', now, found[3] or '', all.alive[1] and lease_left(at.running, all.alive[1], now) or 0}
  end
  retire(at, all, {cid = cid, generation = generation, nonce = ARGV[5], reason = reason, token = token,
    mailboxes = ARGV[9]}, now)
  generation = generation + 1
end
redis.call('HSET', record, 'ended', reason, 'ended_token', token, 'bumped', bumps and '1' or '0',
  'ended_generation', digits(generation))
redis.call('PEXPIRE', record, digits(keep_ms))
return {'ended', now, bumps and 1 or 0, digits(generation), all.alive}
