//! Runs a page.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::compare::Masks;
use crate::federation::Federation;
use crate::hosts::{self, Hosts};
use crate::page::{Block, blocks};
use crate::shell::Shell;

/// Time for the first lines of a command in the background.
const BACKGROUND: Duration = Duration::from_secs(60);
/// The folder that pages show in place of the test's own.
const SHOWN_FOLDER: &str = "/tmp/comity";

/// The programs and files that pages use.
#[derive(Debug)]
pub struct Setup {
    /// The repository. Commands run in a folder with links to its files.
    pub repository: PathBuf,
    /// The folder of `comity`, `comity-agent` and `comity-broker`.
    pub programs: PathBuf,
    /// The folder of kubectl.
    pub kubernetes: PathBuf,
    /// Whether to write what was printed into the pages.
    pub write: bool,
}

impl Setup {
    /// The folders of programs, first those in `before`.
    fn path(&self, before: &[&Path]) -> String {
        let folders = before.iter().copied().chain([self.programs.as_path(), self.kubernetes.as_path()]);
        folders.map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(":")
    }
}

/// What became of a page.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Commands that ran.
    pub ran: usize,
    /// Reasons of blocks that did not run.
    pub not_run: Vec<String>,
    /// Whether some of them did not run for lack of root.
    pub lacks_root: bool,
    /// Differences between page and output, with the line in the page.
    pub problems: Vec<String>,
}

struct PageRun<'a> {
    setup: &'a Setup,
    masks: Masks,
    home: tempfile::TempDir,
    federation: Option<Federation>,
    /// Shells by host; the first one, without name, is on this machine.
    shells: BTreeMap<String, Shell>,
    hosts: Option<Hosts>,
    /// Words of all output so far, the latest last.
    words: Vec<String>,
    outcome: Outcome,
    /// Output that replaces what the page shows: line numbers and lines.
    replaced: Vec<(std::ops::Range<usize>, Vec<String>)>,
}

/// Runs the blocks of one page.
///
/// # Errors
/// If the page cannot be read or a command does not end. Differences are in the outcome.
pub fn page(setup: &Setup, path: &Path) -> Result<Outcome> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let blocks = blocks(&text)?;
    let home = tempfile::Builder::new().prefix("comity-docs-").tempdir()?;
    let folder = work_folder(&setup.repository, home.path())?;
    let bash = ["bash", "--noprofile", "--norc"].map(str::to_owned);
    let shell = Shell::start(&bash, &folder, &setup.path(&[]), home.path())?;
    let mut run = PageRun {
        setup,
        masks: Masks::default(),
        home,
        federation: None,
        shells: BTreeMap::from([(String::new(), shell)]),
        hosts: None,
        words: Vec::new(),
        outcome: Outcome::default(),
        replaced: Vec::new(),
    };
    let offline = blocks.iter().any(|block| block.notes.no_federation || block.notes.host.is_some());
    for block in &blocks {
        run.block(block, offline).with_context(|| format!("{}:{}", path.display(), block.line + 1))?;
    }
    if setup.write && !run.replaced.is_empty() {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for (range, printed) in run.replaced.drain(..).rev() {
            lines.splice(range, printed);
        }
        std::fs::write(path, lines.join("\n") + "\n")?;
    }
    Ok(run.outcome)
}

impl PageRun<'_> {
    fn block(&mut self, block: &Block, offline: bool) -> Result<()> {
        match (&block.notes.not_run, block.language.as_str()) {
            (Some(reason), _) => self.outcome.not_run.push(format!("line {}: {reason}", block.line)),
            (None, "console" | "sh") if block.notes.host.is_some() && !hosts::may_create() => {
                self.outcome.lacks_root = true;
                self.outcome.not_run.push(format!("line {}: hosts need root on Linux", block.line));
            }
            (None, "console" | "sh") => {
                if self.federation.is_none() && !offline {
                    self.start_federation()?;
                }
                let host = block.notes.host.clone().unwrap_or_default();
                self.shell(&host, block.notes.gpus)?;
                if let Some(user) = &block.notes.user {
                    let identity = self.federation.as_ref().context("there is no federation")?.identity(user);
                    ensure!(identity.exists(), "the federation has no user {user}");
                    self.run(&host, &format!("export COMITY_IDENTITY={}", identity.display()))?;
                }
                if block.language == "sh" {
                    self.commands(&host, block)?
                } else {
                    self.transcript(&host, block)?
                }
                if block.notes.user.is_some() {
                    let exports = self.federation.as_ref().map(Federation::exports).unwrap_or_default();
                    self.run(&host, &exports)?;
                }
            }
            (None, _) => {}
        }
        Ok(())
    }

    fn start_federation(&mut self) -> Result<()> {
        let federation = Federation::start(&self.setup.programs.join("comity"), &self.folder())?;
        self.run("", &federation.exports())?;
        self.federation = Some(federation);
        Ok(())
    }

    fn folder(&self) -> PathBuf {
        self.home.path().join("federation")
    }

    fn commands(&mut self, host: &str, block: &Block) -> Result<()> {
        let text = self.with_folder(&block.lines.join("\n"));
        let (printed, code) = self.run(host, &text)?;
        self.outcome.ran += block.lines.iter().filter(|line| !line.starts_with([' ', '#'])).count();
        let wanted = block.notes.exit.unwrap_or(0);
        if code != wanted {
            let problem = format!("line {}: exit code {code}, not {wanted}:\n{}", block.line + 1, printed.join("\n"));
            self.outcome.problems.push(problem);
        }
        Ok(())
    }

    fn transcript(&mut self, host: &str, block: &Block) -> Result<()> {
        let steps = block.steps()?;
        for (number, step) in steps.iter().enumerate() {
            let shown = block.lines.get(step.output.clone()).unwrap_or_default();
            let last = number + 1 == steps.len();
            let (printed, code) = if block.notes.federation {
                let federation = self.federation.as_ref().context("there is no federation")?;
                (federation.printed.clone(), 0)
            } else if block.notes.background && last {
                (self.background(host, &step.command, shown, block.notes.numbers)?, 0)
            } else {
                let command = self.with_words(&self.with_folder(&step.command));
                let command = if block.notes.terminal { on_terminal(&command) } else { command };
                self.run(host, &command)?
            };
            let printed: Vec<String> = printed.iter().map(|line| self.without_folder(line)).collect();
            self.outcome.ran += 1;
            let at = block.line + step.output.start;
            if let Some(wanted) = block.notes.exit.filter(|wanted| last && *wanted != code) {
                self.outcome.problems.push(format!("line {at}: exit code {code}, not {wanted}"));
            }
            if let Some(difference) = self.masks.difference(shown, &printed, block.notes.numbers) {
                self.outcome.problems.push(format!("line {at}: {}\n{difference}", step.command));
                let mut lines = printed;
                // Steps are apart by an empty line where the page has one.
                if !last && shown.last().is_some_and(String::is_empty) && lines.last().is_some_and(|l| !l.is_empty()) {
                    lines.push(String::new());
                }
                self.replaced.push((block.line + step.output.start..block.line + step.output.end, lines));
            }
        }
        Ok(())
    }

    /// Runs a command on a host; the empty name is this machine.
    fn run(&mut self, host: &str, command: &str) -> Result<(Vec<String>, i32)> {
        let command = self.with_words(command);
        let (printed, code) = self.shell(host, false)?.run(&command)?;
        self.words.extend(printed.iter().flat_map(|line| line.split_whitespace()).map(str::to_owned));
        Ok((printed, code))
    }

    /// The shell of a host, which is made if need be; `gpus`: with GPUs.
    fn shell(&mut self, host: &str, gpus: bool) -> Result<&mut Shell> {
        if !self.shells.contains_key(host) {
            let hosts = match &mut self.hosts {
                Some(hosts) => hosts,
                None => self.hosts.insert(Hosts::create()?),
            };
            let home = self.home.path().join(format!("home-{host}"));
            std::fs::create_dir(&home)?;
            let command = hosts.shell(host, self.home.path())?;
            let stand_ins = self.setup.repository.join("integration-tests/docs/stand-ins");
            let path = if gpus { self.setup.path(&[&stand_ins]) } else { self.setup.path(&[]) };
            let shell = Shell::start(&command, &self.home.path().join("work"), &path, &home)?;
            self.shells.insert(host.to_owned(), shell);
        }
        self.shells.get_mut(host).context("the shell of the host")
    }

    /// Replaces each `WORD…` by the last printed word that begins so.
    fn with_words(&self, command: &str) -> String {
        let replace = |word: &str| {
            let start = word.strip_suffix('…')?;
            self.words.iter().rev().find(|printed| printed.starts_with(start) && *printed != word).cloned()
        };
        let words = command.split(' ').map(|word| replace(word).unwrap_or_else(|| word.to_owned()));
        words.collect::<Vec<_>>().join(" ")
    }

    fn background(&mut self, host: &str, command: &str, shown: &[String], any_numbers: bool) -> Result<Vec<String>> {
        let file = self.home.path().join(format!("background-{}", self.outcome.ran));
        let command = self.with_folder(command);
        let command = self.with_words(&command);
        self.shell(host, false)?.start_in_background(&command, &file)?;
        let until = Instant::now() + BACKGROUND;
        loop {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            let printed: Vec<String> = text.lines().map(|line| self.without_folder(line)).collect();
            if self.masks.difference(shown, &printed, any_numbers).is_none() || Instant::now() > until {
                self.words.extend(text.split_whitespace().map(str::to_owned));
                return Ok(printed);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn with_folder(&self, text: &str) -> String {
        text.replace(SHOWN_FOLDER, &self.folder().display().to_string())
    }

    fn without_folder(&self, text: &str) -> String {
        text.replace(&self.folder().display().to_string(), SHOWN_FOLDER)
    }
}

/// The command, run by `script`, which gives it a terminal.
fn on_terminal(command: &str) -> String {
    let quoted = command.replace('\'', "'\\''");
    format!("script --quiet --return --flush --command '{quoted}' /dev/null | tr -d '\\r'")
}

/// A folder with links to everything in the repository but its build output: commands may write files beside them.
fn work_folder(repository: &Path, home: &Path) -> Result<PathBuf> {
    let folder = home.join("work");
    std::fs::create_dir(&folder)?;
    for entry in std::fs::read_dir(repository)? {
        let entry = entry?;
        if entry.file_name() != "target" {
            std::os::unix::fs::symlink(entry.path(), folder.join(entry.file_name()))?;
        }
    }
    Ok(folder)
}

/// All pages in a folder, sorted.
///
/// # Errors
/// If the folder cannot be read or has no page.
pub fn pages(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    let mut pages: Vec<PathBuf> = entries
        .iter()
        .map(std::fs::DirEntry::path)
        .filter(|path| path.extension().is_some_and(|e| e == "md"))
        .collect();
    pages.sort();
    if pages.is_empty() {
        bail!("{} has no page", folder.display());
    }
    Ok(pages)
}
