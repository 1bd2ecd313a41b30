//! Runs the `comity` command as a user would.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::process::Command;

use crate::process::place::Place;
use crate::programs::{program, utf8};
use crate::wait::PATIENCE;

/// Directory of a user's certificate within a federation's directory.
pub(crate) fn identity(dir: &Path, user: &str) -> PathBuf {
    dir.join(format!("user-{user}"))
}

/// The command for one federation. Cheap to clone; it keeps working while brokers restart.
#[derive(Clone)]
pub struct Comity {
    place: Place,
    brokers: String,
    dir: PathBuf,
}

impl Comity {
    /// The command for the federation in `dir` with these brokers.
    pub(crate) fn new(place: Place, brokers: &[String], dir: &Path) -> Self {
        Self { place, brokers: brokers.join(","), dir: dir.to_owned() }
    }

    /// The same command in another place.
    #[must_use]
    pub fn at(self, place: Place) -> Self {
        Self { place, ..self }
    }

    /// `comity ARGS` as `user`, not started yet.
    ///
    /// # Errors
    /// When the program is missing.
    pub fn command(&self, user: &str, args: &[&str]) -> Result<Command> {
        let identity = identity(&self.dir, user);
        let mut words = vec!["--broker", &self.brokers, "--identity", utf8(&identity)?];
        words.extend_from_slice(args);
        let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        Ok((self.place.launch)(&program("comity")?, &words))
    }

    /// Runs `comity -o json ARGS` as `user`; returns exit code, standard output and standard error.
    ///
    /// # Errors
    /// When the command cannot be started or does not end.
    pub async fn run(&self, user: &str, args: &[&str]) -> Result<(i32, String, String)> {
        let mut command = self.command(user, &[&["-o", "json"], args].concat())?;
        let output = tokio::time::timeout(PATIENCE, command.kill_on_drop(true).output())
            .await
            .context("comity took too long")??;
        Ok((
            output.status.code().unwrap_or(-1),
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        ))
    }

    /// Runs `comity -o json ARGS` as `user`; returns its output, or null if it prints none.
    ///
    /// # Errors
    /// When the command fails, with its error.
    pub async fn json(&self, user: &str, args: &[&str]) -> Result<Value> {
        let (code, out, err) = self.run(user, args).await?;
        ensure!(code == 0, "comity {} ended with {code}: {err}", args.join(" "));
        if out.trim().is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_str(&out).with_context(|| format!("comity {} printed {out:?}", args.join(" ")))
    }
}

/// The items of a list printed by `comity`.
pub(crate) fn items(list: &Value) -> Result<&Vec<Value>> {
    list["items"].as_array().or_else(|| list.as_array()).context("a list has items")
}
