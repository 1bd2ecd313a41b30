//! Blocks of code in a page.

use anyhow::{Result, bail};

/// A block of code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Line number of its first line of code, from 0.
    pub line: usize,
    /// The language after the fence.
    pub language: String,
    /// The notes above it.
    pub notes: Notes,
    /// Its lines.
    pub lines: Vec<String>,
}

/// The notes above a block; the crate's documentation lists them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Notes {
    /// It starts the federation.
    pub federation: bool,
    /// The page needs no federation.
    pub no_federation: bool,
    /// The user.
    pub user: Option<String>,
    /// The host.
    pub host: Option<String>,
    /// The exit code of the last command.
    pub exit: Option<i32>,
    /// The host has GPUs.
    pub gpus: bool,
    /// Output goes to a terminal.
    pub terminal: bool,
    /// Any numbers match.
    pub numbers: bool,
    /// The last command keeps running.
    pub background: bool,
    /// The reason why it is not run.
    pub not_run: Option<String>,
}

/// A command of a transcript and the output shown for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The command, without its prompt.
    pub command: String,
    /// The lines of its output, as a range of the block's lines.
    pub output: std::ops::Range<usize>,
}

/// Reads the blocks of a page.
///
/// # Errors
/// If a block is not closed, has no language, or has an unknown note.
pub fn blocks(text: &str) -> Result<Vec<Block>> {
    let mut blocks = Vec::new();
    let (mut open, mut notes): (Option<Block>, Notes) = (None, Notes::default());
    for (number, line) in text.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (Some(_), Some("")) => blocks.extend(open.take()),
            (Some(block), _) => block.lines.push(line.to_owned()),
            (None, Some("")) => bail!("line {}: the block has no language; use console, sh or text", number + 1),
            (None, Some(language)) => {
                let notes = std::mem::take(&mut notes);
                open = Some(Block { line: number + 1, language: language.to_owned(), notes, lines: Vec::new() });
            }
            (None, None) => {
                if let Some(comment) = line.strip_prefix("<!-- docs: ").and_then(|line| line.strip_suffix(" -->")) {
                    notes = comment.parse().map_err(|error| anyhow::anyhow!("line {}: {error}", number + 1))?;
                }
            }
        }
    }
    match open {
        Some(block) => bail!("line {}: the block is not closed", block.line),
        None => Ok(blocks),
    }
}

impl std::str::FromStr for Notes {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut notes = Self::default();
        if let Some(reason) = text.strip_prefix("not run: ") {
            notes.not_run = Some(reason.to_owned());
            return Ok(notes);
        }
        for note in text.split(", ") {
            match note.split_once(' ') {
                None if note == "federation" => notes.federation = true,
                None if note == "numbers" => notes.numbers = true,
                None if note == "gpus" => notes.gpus = true,
                None if note == "terminal" => notes.terminal = true,
                None if note == "background" => notes.background = true,
                Some(("no", "federation")) => notes.no_federation = true,
                Some(("on", host)) => notes.host = Some(host.to_owned()),
                Some(("as", user)) => notes.user = Some(user.to_owned()),
                Some(("exit", code)) => notes.exit = Some(code.parse()?),
                _ => bail!("unknown note `{note}`"),
            }
        }
        Ok(notes)
    }
}

impl Block {
    /// The commands of a transcript. A command goes on in the next line after a backslash.
    ///
    /// # Errors
    /// If the block does not begin with a command.
    pub fn steps(&self) -> Result<Vec<Step>> {
        let mut steps: Vec<Step> = Vec::new();
        let mut continued = false;
        for (number, line) in self.lines.iter().enumerate() {
            let prompt = line.strip_prefix("$ ");
            match (steps.last_mut(), prompt) {
                (Some(step), _) if continued => {
                    step.command.push('\n');
                    step.command.push_str(line);
                    step.output = number + 1..number + 1;
                }
                (_, Some(command)) => {
                    steps.push(Step { command: command.to_owned(), output: number + 1..number + 1 });
                }
                (Some(step), None) => {
                    step.output.end = number + 1;
                    continue;
                }
                (None, None) => bail!("line {}: a transcript begins with `$ `", self.line + 1),
            }
            continued = line.ends_with('\\');
        }
        Ok(steps)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_notes_and_transcripts_have_steps() {
        let text = "text\n<!-- docs: as ingrid, exit 3 -->\n```console\n$ one \\\n  two\nout\n\nmore\n$ three\n```\n\
                    ```yaml\na: 1\n```\n";
        let blocks = blocks(text).unwrap();
        assert_eq!((blocks.len(), blocks[0].line, blocks[1].line), (2, 3, 11));
        assert_eq!((blocks[0].notes.user.as_deref(), blocks[0].notes.exit), (Some("ingrid"), Some(3)));
        assert_eq!(blocks[1].notes, Notes::default());
        let steps = blocks[0].steps().unwrap();
        assert_eq!((steps[0].command.as_str(), steps[0].output.clone()), ("one \\\n  two", 2..5));
        assert_eq!((steps[1].command.as_str(), steps[1].output.clone()), ("three", 6..6));
    }

    #[test]
    fn a_block_without_language_and_an_unknown_note_are_errors() {
        assert!(blocks("```\n```\n").unwrap_err().to_string().contains("line 1: the block has no language"));
        assert!(blocks("<!-- docs: twice -->\n").unwrap_err().to_string().contains("unknown note `twice`"));
        assert!(blocks("```sh\nls\n").is_err());
    }
}
