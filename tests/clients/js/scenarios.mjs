// What a program does with the official client. `node scenarios.mjs <folder with node_modules> <base URL> <scenario>`
// exits with 0 when all that it checks holds.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";

const [folder, baseURL, scenario] = process.argv.slice(2);
const { OpenAI } = createRequire(join(folder, "package.json"))("openai");
const client = new OpenAI({ baseURL, apiKey: "one" });

async function all(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

const numbers = (events) => events.map((event) => event.sequence_number);
const upTo = (count) => [...Array(count).keys()];

const scenarios = {
  async chat() {
    const messages = [{ role: "user", content: "hello you" }];
    const whole = await client.chat.completions.create({ model: "ok", messages });
    assert.equal(whole.choices[0].message.content, "hello you");
    const options = { headers: { "Idempotency-Key": "k" } };
    for (let turn = 0; turn < 2; turn++) {
      const stream = await client.chat.completions.create({ model: "ok", messages, stream: true }, options);
      const chunks = await all(stream);
      assert.equal(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""), "hello you");
    }
  },

  async create() {
    const made = await client.responses.create({ model: "ok", input: "hello you", metadata: { a: "b" } });
    assert.deepEqual([made.output_text, made.status, made.metadata], ["hello you", "completed", { a: "b" }]);
    for (let turn = 0; turn < 2; turn++) {
      const found = await client.responses.retrieve(made.id);
      assert.deepEqual([found.output_text, found.usage], ["hello you", made.usage]);
    }
    const items = await all(client.responses.inputItems.list(made.id));
    assert.equal(items[0].content[0].text, "hello you");
    await client.responses.delete(made.id);
    await assert.rejects(client.responses.retrieve(made.id), OpenAI.NotFoundError);
  },

  async stream() {
    const events = await all(await client.responses.create({ model: "ok", input: "one two", stream: true }));
    assert.deepEqual(numbers(events), upTo(10));
    assert.equal(events.at(-1).type, "response.completed");
    const helper = client.responses.stream({ model: "ok", input: "one two" });
    let text = "";
    helper.on("response.output_text.delta", (event) => (text += event.delta));
    assert.equal((await helper.finalResponse()).output_text, "one two");
    assert.equal(text, "one two");
  },

  async chain() {
    const first = await client.responses.create({ model: "ok", input: "one" });
    const second = await client.responses.create({ model: "ok", input: "two", previous_response_id: first.id });
    const branch = await client.responses.create({ model: "ok", input: "other", previous_response_id: first.id });
    assert.equal(second.conversation.id, first.conversation.id);
    assert.notEqual(branch.conversation.id, first.conversation.id);
    const garbage = client.responses.create({ model: "ok", input: "x", previous_response_id: "resp_garbage" });
    await assert.rejects(garbage, OpenAI.NotFoundError);
  },

  async background() {
    let made = await client.responses.create({ model: "slow:0.02", input: "one two", background: true });
    while (["queued", "in_progress"].includes(made.status)) {
      await pause(10);
      made = await client.responses.retrieve(made.id);
    }
    assert.deepEqual([made.status, made.output_text], ["completed", "one two"]);
    const hanging = await client.responses.create({ model: "hang", input: "one", background: true });
    assert.equal((await client.responses.cancel(hanging.id)).status, "cancelled");
    assert.equal((await client.responses.retrieve(hanging.id)).status, "cancelled");
  },

  async resume() {
    const asked = { model: "slow:0.01", input: "one two", background: true, stream: true };
    for (const after of [0, 4, 8]) {
      const received = [];
      for await (const event of await client.responses.create(asked)) {
        received.push(event);
        if (event.sequence_number === after) break;
      }
      const found = received[0].response.id;
      const rest = await client.responses.retrieve(found, { stream: true, starting_after: after });
      assert.deepEqual(numbers([...received, ...(await all(rest))]), upTo(10));
    }
  },

  async tools() {
    const tools = [{ type: "function", name: "get_weather", strict: false, parameters: { type: "object" } }];
    const made = await client.responses.create({ model: "tools", input: "weather?", tools });
    const input = made.output.map(({ call_id }) => ({ type: "function_call_output", call_id, output: "sunny" }));
    assert.equal(input.length, 2);
    const done = await client.responses.create({ model: "ok", input, tools, previous_response_id: made.id });
    assert.equal(done.status, "completed");
  },

  async conversations() {
    const made = await client.conversations.create({
      metadata: { a: "b" },
      items: [{ type: "message", role: "user", content: "one" }],
    });
    await client.responses.create({ model: "ok", input: "two", conversation: made.id });
    const items = await all(client.conversations.items.list(made.id));
    assert.deepEqual(
      items.map((item) => item.content[0].text),
      ["one", "two", "two"],
    );
    await client.conversations.update(made.id, { metadata: { c: "d" } });
    assert.deepEqual((await client.conversations.retrieve(made.id)).metadata, { c: "d" });
    assert.equal((await client.conversations.delete(made.id)).deleted, true);
    await assert.rejects(client.conversations.retrieve(made.id), OpenAI.NotFoundError);
  },
};

await scenarios[scenario]();
