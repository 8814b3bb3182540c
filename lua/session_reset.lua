#!lua flags=allow-oom
-- Opens the next generation of a conversation. Never waits: what runs in the old one is fenced and asked to stop.
--
-- KEYS[1] conversation  hash: the conversation
-- KEYS[2] live          set: turns of it granted and not ended
-- KEYS[3] turns         zset: turn -> ms until which its record is kept
-- KEYS[4] leftovers     zset: the same, of retired sessions, until erased; receipts are kept
-- KEYS[5] queue         zset: <turn>@<replica> by arrival
-- KEYS[6] messages      list: its transcript
-- KEYS[7] running       zset: turn -> lease deadline, of the tenant
-- KEYS[8] waiting       zset: turn -> ms until which its replica vouches for it
-- KEYS[9] cancelling    set: turns asked to stop
-- KEYS[10] sessions     zset: cid by last activity
-- KEYS[11] tombstones   zset: cid by time of retirement
-- KEYS[12] erasing      set: cids with leftovers
-- KEYS[13] idempotency  hash: the reset's own key; absent without one
-- ARGV[1] cid           the conversation's id
-- ARGV[2] named         the session id the request names, or '' when it names the conversation
-- ARGV[3] expected      the session id or generation that must be current, or ''
-- ARGV[4] reason        session_reset, session_switch, idle, daily, suspended or resume_pending_expired
-- ARGV[5] token         the caller's, made before the call: repeated, it is answered as the first time
-- ARGV[6] fingerprint   digest of the request, compared for one key
-- ARGV[7] key_ms        retention of the key from now, 0 for ever
-- ARGV[8] nonce         for the next generation
-- ARGV[9] lease_ms      length of a lease
-- ARGV[10] vouch_ms     how long a waiter counts after it asked
-- ARGV[11] mailboxes    channel prefix of the replicas' mailboxes
-- -> {'reset', now, generation, session, ended, reason, {turn...}}   the generation that is current now, the id its session
--                                has or will have, the id that ended ('' when none was open), and the turns asked to stop
-- -> {'conflict', now}           the key names another request
-- -> {'not_found', now}          the named session is not current, or there is no such conversation
-- -> {'stale', now}              not what was expected; nothing done

--- @include lib/clock
--- @include lib/expect
--- @include lib/number
--- @include lib/deadline
--- @include lib/lease
--- @include lib/queue
--- @include lib/retire

local at = {conversation = KEYS[1], live = KEYS[2], turns = KEYS[3], leftovers = KEYS[4], queue = KEYS[5],
  messages = KEYS[6], running = KEYS[7], waiting = KEYS[8], cancelling = KEYS[9], sessions = KEYS[10],
  tombstones = KEYS[11], erasing = KEYS[12]}
local idempotency = KEYS[13]
local cid, named, expected, reason, token, nonce = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[8]
local key_ms, lease_ms, vouch_ms = integer(ARGV[7], 'key_ms'), integer(ARGV[9], 'lease_ms'), integer(ARGV[10], 'vouch_ms')
local now = store_ms()

for _, key in ipairs({at.turns, at.leftovers, at.queue, at.running, at.waiting, at.sessions, at.tombstones}) do
  expect('zset', key)
end
for _, key in ipairs({at.live, at.cancelling, at.erasing}) do expect('set', key) end
expect('hash', at.conversation)
expect('list', at.messages)
if idempotency then expect('hash', idempotency) end

local found = redis.call('HMGET', at.conversation, 'session', 'generation', 'nonce', 'ended_token', 'ended_session', 'ended_by',
  'ended_turns')
local session, generation = found[1], integer(found[2] or '1', 'generation')
local function name(of_generation, with_nonce)
  return 'ses_' .. cid .. '_' .. digits(of_generation) .. '_' .. with_nonce
end

-- The same reset again. Its reply was lost: it is told again. Its key was seen, early or late: what is left to tell.
if found[4] == token then
  return {'reset', now, digits(generation), name(generation, found[3]), found[5] or '', found[6], stopped_turns(found[7])}
end
local seen = idempotency and redis.call('HMGET', idempotency, 'fingerprint', 'generation', 'session', 'ended', 'reason') or {}
if seen[1] and seen[1] ~= ARGV[6] then
  return {'conflict', now}
elseif seen[1] then
  return {'reset', now, seen[2], seen[3], seen[4], seen[5], {}}
elseif not session then
  return {'not_found', now}
end

local current = session ~= '' and session or name(generation, found[3])
if named ~= '' and named ~= current then
  return {'not_found', now}
elseif expected ~= '' and expected ~= current and expected ~= digits(generation) then
  return {'stale', now}
end

local all = {}
all.alive, all.dead = split_live(at.live, at.running, now, lease_ms)
all.waiters, all.gone = split_waiters(at.queue, at.waiting, now, vouch_ms)
retire(at, all, {cid = cid, generation = generation, nonce = nonce, reason = reason, token = token,
  mailboxes = ARGV[11]}, now)
redis.call('HSET', at.conversation, 'ended_session', session)
local next_session = name(generation + 1, nonce)
if idempotency then
  redis.call('HSET', idempotency, 'fingerprint', ARGV[6], 'turn', '', 'cid', cid, 'state', 'reset', 'session', next_session,
    'generation', digits(generation + 1), 'ended', session, 'reason', reason)
  if key_ms > 0 then
    redis.call('PEXPIRE', idempotency, digits(key_ms))
  end
end
return {'reset', now, digits(generation + 1), next_session, session, reason, all.alive}
