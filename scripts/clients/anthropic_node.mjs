// Anthropic's client for Node and its streaming helper.
import Anthropic from '@anthropic-ai/sdk';
import { ARGUMENTS, WEATHER, assert, calling, run, talking } from './checks.mjs';

const client = new Anthropic({ baseURL: talking.base, apiKey: 'none', maxRetries: 0 });
const tools = new Anthropic({ baseURL: calling.base, apiKey: 'none', maxRetries: 0 });
const asked = {
  model: talking.model,
  max_tokens: 24,
  temperature: 0,
  messages: [{ role: 'user', content: 'What is the capital of France?' }],
};
const withTool = {
  model: calling.model,
  max_tokens: 400,
  messages: [{ role: 'user', content: 'Weather?' }],
  tools: [{ name: 'get_weather', description: 'Weather', input_schema: WEATHER }],
};

await run('anthropic-node', {
  'a message, whole and through the streaming helper': async () => {
    const whole = await client.messages.create(asked);
    const stream = client.messages.stream(asked);
    let text = '';
    stream.on('text', (delta) => (text += delta));
    const final = await stream.finalMessage();
    assert.equal(text, whole.content[0].text);
    assert.deepEqual(final.content, whole.content);
    assert.deepEqual(final.usage.output_tokens, whole.usage.output_tokens);
    return text;
  },
  'thinking, text and a call': async () => {
    const seen = [];
    const stream = tools.messages.stream(withTool);
    stream.on('contentBlock', (block) => seen.push(block.type));
    const final = await stream.finalMessage();
    assert.deepEqual(seen, ['thinking', 'text', 'tool_use']);
    assert.equal(final.stop_reason, 'tool_use');
    assert.deepEqual(final.content[2].input, ARGUMENTS);
    const result = { type: 'tool_result', tool_use_id: final.content[2].id, content: 'dry' };
    const messages = [
      ...withTool.messages,
      { role: 'assistant', content: final.content },
      { role: 'user', content: [result] },
    ];
    await tools.messages.create({ ...withTool, messages });
  },
  'counted tokens': async () => {
    const { max_tokens, temperature, ...counted } = asked;
    assert((await client.messages.countTokens(counted)).input_tokens > 5);
  },
  errors: async () => {
    await assert.rejects(client.messages.create({ ...asked, model: 'nobody' }), { status: 404 });
    await assert.rejects(client.messages.create({ ...asked, max_tokens: 0 }), { status: 400 });
  },
});
