// Vercel's AI SDK: its provider for OpenAI-compatible servers, and OpenAI's own on responses.
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { Output, generateText, jsonSchema, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';
import { ARGUMENTS, WEATHER, assert, calling, run, talking } from './checks.mjs';

const settings = { name: 'dgpp', includeUsage: true, supportsStructuredOutputs: true };
const provider = createOpenAICompatible({ ...settings, baseURL: `${talking.base}/v1` });
const callers = createOpenAICompatible({ ...settings, baseURL: `${calling.base}/v1` });
const responses = createOpenAI({ baseURL: `${talking.base}/v1`, apiKey: 'none' });
const question = { prompt: 'What is the capital of France?', temperature: 0, maxOutputTokens: 24 };
const City = z.object({ city: z.string(), inhabitants: z.number().int().nullable() });

async function read(stream) {
  let text = '';
  for await (const part of stream.textStream) text += part;
  return text;
}

await run('vercel-ai', {
  'text, whole and streamed': async () => {
    const model = provider(talking.model);
    const whole = await generateText({ model, ...question, maxRetries: 0 });
    const stream = streamText({ model, ...question, maxRetries: 0 });
    assert.equal(await read(stream), whole.text);
    assert.equal((await stream.usage).outputTokens, whole.usage.outputTokens);
    assert.equal(await stream.finishReason, 'stop');
    return whole.text;
  },
  'reasoning and a tool call, streamed': async () => {
    let given;
    const weather = tool({
      description: 'Weather',
      inputSchema: jsonSchema(WEATHER),
      execute: async (input) => {
        given = input;
        return 'dry';
      },
    });
    const stream = streamText({
      model: callers(calling.model), prompt: 'Weather?', tools: { get_weather: weather },
      stopWhen: stepCountIs(2), maxOutputTokens: 400, maxRetries: 0,
    });
    await read(stream);
    assert.deepEqual(given, ARGUMENTS);
    const [first] = await stream.steps;
    assert.equal(first.reasoningText, 'Hm, rain?');
    assert.equal(first.finishReason, 'tool-calls');
  },
  'a structured answer': async () => {
    const found = await generateText({
      model: provider(talking.model), prompt: 'Paris', temperature: 0, maxOutputTokens: 120,
      output: Output.object({ schema: City }), maxRetries: 0,
    });
    assert.equal(typeof found.output.city, 'string');
    return JSON.stringify(found.output);
  },
  'responses, streamed': async () => {
    const model = responses.responses(talking.model);
    const stream = streamText({ model, ...question, maxRetries: 0 });
    const text = await read(stream);
    assert.match(text, /Paris/);
  },
  errors: async () => {
    const model = provider('nobody');
    await assert.rejects(generateText({ model, ...question, maxRetries: 0 }), { statusCode: 404 });
  },
});
