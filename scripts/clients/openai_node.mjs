// OpenAI's client for Node: chat, completions, responses, its streaming and tool helpers.
import OpenAI from 'openai';
import { zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import { ARGUMENTS, WEATHER, assert, calling, run, talking } from './checks.mjs';

const client = new OpenAI({ baseURL: `${talking.base}/v1`, apiKey: 'none', maxRetries: 0 });
const tools = new OpenAI({ baseURL: `${calling.base}/v1`, apiKey: 'none', maxRetries: 0 });
const messages = [{ role: 'user', content: 'What is the capital of France?' }];
const asked = { model: talking.model, messages, temperature: 0, max_tokens: 24 };
const weather = {
  type: 'function',
  function: { name: 'get_weather', description: 'Weather', parameters: WEATHER },
};
const withTool = {
  model: calling.model,
  messages: [{ role: 'user', content: 'Weather?' }],
  tools: [weather],
  max_tokens: 400,
};
const City = z.object({ city: z.string(), inhabitants: z.number().int().nullable() });

await run('openai-node', {
  models: async () => {
    const names = [];
    for await (const one of client.models.list()) names.push(one.id);
    assert(names.includes(talking.model));
  },
  'chat, whole and streamed': async () => {
    const whole = await client.chat.completions.create(asked);
    let text = '';
    let usage = null;
    const options = { stream: true, stream_options: { include_usage: true } };
    for await (const chunk of await client.chat.completions.create({ ...asked, ...options })) {
      text += chunk.choices[0]?.delta.content ?? '';
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
    return text;
  },
  'the streaming helper': async () => {
    const stream = client.chat.completions.stream(asked);
    let deltas = '';
    stream.on('content', (delta) => (deltas += delta));
    const final = await stream.finalChatCompletion();
    assert.equal(final.choices[0].finish_reason, 'stop');
    assert.equal(deltas, final.choices[0].message.content);
  },
  'structured outputs': async () => {
    const form = zodResponseFormat(City, 'city');
    const said = { ...asked, max_tokens: 120, response_format: form };
    const parsed = (await client.chat.completions.parse(said)).choices[0].message.parsed;
    assert.equal(typeof parsed.city, 'string');
    return JSON.stringify(parsed);
  },
  'a tool call, whole and streamed': async () => {
    const whole = (await tools.chat.completions.create(withTool)).choices[0];
    assert.equal(whole.finish_reason, 'tool_calls');
    const [call] = whole.message.tool_calls;
    assert.deepEqual(JSON.parse(call.function.arguments), ARGUMENTS);
    const final = await tools.chat.completions.stream(withTool).finalChatCompletion();
    const [streamed] = final.choices[0].message.tool_calls;
    assert.equal(streamed.function.arguments, call.function.arguments);
    const history = [
      ...withTool.messages,
      whole.message,
      { role: 'tool', tool_call_id: call.id, content: 'dry' },
    ];
    await tools.chat.completions.create({ ...withTool, messages: history });
  },
  'responses, whole and streamed': async () => {
    const said = { model: talking.model, input: 'Name three fruits.', temperature: 0 };
    said.max_output_tokens = 24;
    const whole = await client.responses.create(said);
    const stream = client.responses.stream(said);
    let text = '';
    for await (const event of stream)
      if (event.type === 'response.output_text.delta') text += event.delta;
    assert.equal(text, whole.output_text);
    assert.equal((await stream.finalResponse()).output_text, text);
    return text;
  },
  'a response that calls': async () => {
    const tool = { type: 'function', name: 'get_weather', parameters: WEATHER, strict: false };
    const found = await tools.responses.create({
      model: calling.model, input: 'Weather?', tools: [tool], max_output_tokens: 400,
    });
    const kinds = found.output.map((item) => item.type);
    assert.deepEqual(kinds, ['reasoning', 'message', 'function_call']);
    assert.deepEqual(JSON.parse(found.output[2].arguments), ARGUMENTS);
  },
  'a completion with the prompt and its logprobs': async () => {
    const found = await client.completions.create({
      model: talking.model, prompt: 'The capital of France is Paris', echo: true, logprobs: 2,
      max_tokens: 0,
    });
    const told = found.choices[0].logprobs;
    assert.equal(found.choices[0].text, 'The capital of France is Paris');
    assert.equal(told.token_logprobs[0], null);
    assert.equal(told.tokens.join(''), found.choices[0].text);
  },
  errors: async () => {
    await assert.rejects(client.chat.completions.create({ ...asked, model: 'nobody' }), {
      status: 404, code: 'model_not_found',
    });
    await assert.rejects(client.chat.completions.create({ ...asked, n: 1000 }), {
      status: 400, param: 'n',
    });
  },
  'an aborted stream': async () => {
    const stream = await client.chat.completions.create({ ...asked, max_tokens: 900, stream: true });
    for await (const _ of stream) break;
    stream.controller.abort();
  },
});
