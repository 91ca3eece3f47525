// Each check asks one thing of a server and throws where the answer is not what it should be.
// usage: node FILE BASE MODEL CALLING_BASE CALLING_MODEL
// BASE serves a model that talks; what CALLING_BASE serves thinks, says a sentence and calls a tool.
import assert from 'node:assert/strict';

const [, , base, model, callingBase, callingModel] = process.argv;
export const talking = { base, model };
export const calling = { base: callingBase, model: callingModel };
export { assert };

export const WEATHER = {
  type: 'object',
  properties: { city: { type: 'string' }, days: { type: 'integer' } },
};
export const ARGUMENTS = { city: 'Köln', days: 3 };

export async function run(name, checks) {
  let failed = 0;
  for (const [what, check] of Object.entries(checks)) {
    try {
      const said = await check();
      console.log(`${name}: ${what}: ok${said === undefined ? '' : ` (${said})`}`);
    } catch (error) {
      failed += 1;
      console.log(`${name}: ${what}: FAILED: ${error?.stack ?? error}`);
    }
  }
  process.exitCode = failed ? 1 : 0;
}
