//! Where a text is printed: how wide lines may be, and whether they are coloured.

use std::io::IsTerminal as _;

use anstream::{AutoStream, ColorChoice};
use clap::ValueEnum;

/// Lines are not made narrower than this.
const MIN_WIDTH: usize = 20;

/// When to use colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ColorMode {
    /// On terminals, unless NO_COLOR is set or TERM is dumb
    #[default]
    Auto,
    /// Also in files and pipes
    Always,
    /// Nowhere
    Never,
}

impl ColorMode {
    /// Applies it to all output of this process.
    pub fn apply(self) {
        let choice = match self {
            Self::Auto => ColorChoice::Auto,
            Self::Always => ColorChoice::AlwaysAnsi,
            Self::Never => ColorChoice::Never,
        };
        choice.write_global();
    }
}

/// Whether columns may be hidden so that a table fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableWidth {
    /// Fit the terminal.
    Fit,
    /// Show all columns, however long the lines get.
    Wide,
}

/// Where a text is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Columns of the terminal; `None`: lines may have any length.
    pub width: Option<usize>,
    /// Whether states and heads are coloured.
    pub coloured: bool,
}

impl Page {
    /// A page for files and programs: lines of any length, no colours.
    pub const PLAIN: Self = Self { width: None, coloured: false };

    /// Standard output. Text for a pipe or a file is never cut.
    #[must_use]
    pub fn stdout(tables: TableWidth) -> Self {
        let out = std::io::stdout();
        let fits = out.is_terminal() && tables == TableWidth::Fit;
        Self { width: fits.then(terminal_width), coloured: is_coloured(AutoStream::choice(&out)) }
    }

    /// Standard error.
    #[must_use]
    pub fn stderr() -> Self {
        let err = std::io::stderr();
        Self { width: err.is_terminal().then(terminal_width), coloured: is_coloured(AutoStream::choice(&err)) }
    }

    /// A page without colours that is `width` columns wide.
    #[must_use]
    pub const fn of_width(width: usize) -> Self {
        Self { width: Some(width), coloured: false }
    }
}

fn is_coloured(choice: ColorChoice) -> bool {
    choice != ColorChoice::Never
}

/// COLUMNS, else the terminal's width, else 80.
fn terminal_width() -> usize {
    let named = std::env::var("COLUMNS").ok().and_then(|text| text.trim().parse().ok());
    let asked = || crossterm::terminal::size().ok().map(|(columns, _)| usize::from(columns));
    named.or_else(asked).filter(|width| *width > 0).unwrap_or(80).max(MIN_WIDTH)
}
