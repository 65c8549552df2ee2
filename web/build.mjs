// Bundles src/ into the Python package: app.js, app.css, index.html. `node build.mjs --watch` builds on change.
import { createHash } from "node:crypto";
import { copyFile, mkdir, readdir, readFile, writeFile } from "node:fs/promises";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { build, context } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const out = join(here, "../src/cdknet/explorer/static");

async function files(folder) {
  const entries = await readdir(folder, { withFileTypes: true });
  const nested = await Promise.all(
    entries.map((e) => (e.isDirectory() ? files(join(folder, e.name)) : [join(folder, e.name)])),
  );
  return nested.flat().sort();
}

/** A hash of every source file, so that a test without node can tell whether the bundle is up to date. */
async function fingerprint() {
  const hash = createHash("sha256");
  const paths = (await files(join(here, "src"))).map((p) => relative(here, p).replaceAll("\\", "/")).sort();
  for (const path of paths) {
    hash.update(path + "\n");
    hash.update(await readFile(join(here, path)));
  }
  return hash.digest("hex");
}

const finish = {
  name: "finish",
  setup(b) {
    b.onEnd(async (result) => {
      if (result.errors.length) return;
      const mark = `/* cdknet explorer, built from web/ by "npm run build"; source ${await fingerprint()} */\n`;
      const js = await readFile(join(out, "app.js"), "utf8");
      if (/<\/script/i.test(js) || js.includes("<!--")) {
        throw new Error("app.js must hold no closing script tag and no comment mark: the report puts it inline.");
      }
      await writeFile(join(out, "app.js"), mark + js);
      await copyFile(join(here, "src/index.html"), join(out, "index.html"));
      console.log(`app.js ${Math.round(js.length / 1024)} KB`);
    });
  },
};

const options = {
  entryPoints: { app: join(here, "src/main.ts") },
  bundle: true,
  minify: true,
  format: "iife",
  target: ["es2022", "chrome123", "firefox120", "safari17.5"],
  charset: "utf8",
  legalComments: "none",
  outdir: out,
  plugins: [finish],
};
await mkdir(out, { recursive: true });
if (process.argv.includes("--watch")) await (await context(options)).watch();
else await build(options);
