//! A Git repository whose commits people sign with SSH keys.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};

/// A repository, and the keys of people beside it. Settings of this machine do not count.
#[derive(Debug)]
pub struct SignedGit {
    home: PathBuf,
}

impl SignedGit {
    /// Makes an empty repository in `home`/`repository`, and in `home` a key for each person.
    ///
    /// # Errors
    ///
    /// When git or ssh-keygen fails.
    pub fn init(home: &Path, people: &[&str]) -> Result<Self> {
        let signed = Self { home: home.to_owned() };
        fs::create_dir_all(signed.path())?;
        for person in people {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-C", person, "-f"])
                .arg(home.join(person))
                .status()
                .context("ssh-keygen does not run")?;
            ensure!(made.success(), "ssh-keygen failed");
        }
        signed.git(&["init", "--quiet", "--initial-branch", "main"])?;
        Ok(signed)
    }

    /// The work tree.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.home.join("repository")
    }

    /// The public key of a person, in one line.
    ///
    /// # Errors
    ///
    /// When the person has none.
    pub fn key(&self, person: &str) -> Result<String> {
        let file = self.home.join(format!("{person}.pub"));
        let key = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(key.trim().to_owned())
    }

    fn run(&self, arguments: &[&str]) -> io::Result<Output> {
        Command::new("git")
            .current_dir(self.path())
            .env("HOME", &self.home)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_TERMINAL_PROMPT", "0")
            .args(["-c", "user.name=A", "-c", "user.email=a@x", "-c", "gpg.format=ssh"])
            .args(arguments)
            .output()
    }

    /// Runs git. Returns what it prints.
    ///
    /// # Errors
    ///
    /// When git fails.
    pub fn git(&self, arguments: &[&str]) -> Result<String> {
        let output = self.run(arguments).context("git does not run")?;
        ensure!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Writes a file of the work tree.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.path().join(file);
        fs::create_dir_all(path.parent().context("the file has no folder")?)?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Replaces the first `from` in a file of the work tree.
    ///
    /// # Errors
    ///
    /// When the file lacks it.
    pub fn edit(&self, file: &str, from: &str, to: &str) -> Result<()> {
        let text = fs::read_to_string(self.path().join(file)).with_context(|| format!("cannot read {file}"))?;
        ensure!(text.contains(from), "{file} has no {from}: {text}");
        self.write(file, &text.replacen(from, to, 1))
    }

    /// Commits everything, signed by a person's key or not at all. Returns the commit's id.
    ///
    /// # Errors
    ///
    /// When git fails.
    pub fn commit(&self, signer: Option<&str>, message: &str) -> Result<String> {
        let sign = signer.map(|signer| format!("-S{}", self.home.join(signer).display()));
        let mut arguments = vec!["commit", "--quiet", "--allow-empty", "-m", message];
        arguments.extend(sign.as_deref());
        self.git(&["add", "."])?;
        self.git(&arguments)?;
        self.git(&["rev-parse", "HEAD"])
    }

    /// The content of an object of a kind, as `git cat-file` names it; `None` if the repository lacks it.
    ///
    /// # Errors
    ///
    /// When git does not run.
    pub fn object(&self, kind: &str, id: &str) -> io::Result<Option<Vec<u8>>> {
        let output = self.run(&["cat-file", kind, id])?;
        Ok(output.status.success().then_some(output.stdout))
    }
}
