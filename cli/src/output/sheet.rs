//! Text for people: fields, tables and lines, laid out for a page when they are printed.
//!
//! A sheet holds only printable text: brokers, agents and other institutions wrote most of it.

use std::fmt;

use comity_types::{is_printable, printable, printable_line};

use super::column::{Column, ColumnKind};
use super::fit::{Fit, GAP, ShownColumn};
use super::page::Page;
use super::text::{cut, width, wrap};
use super::tone::{self, FAINT, HEAD, paint};

/// The field whose value is a state.
const STATE_FIELD: &str = "State";
/// Later lines of a paragraph are indented by this.
const INDENT: &str = "  ";
/// Values of fields are not wrapped to less than this.
const MIN_VALUE_WIDTH: usize = 20;

/// Text for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sheet {
    pub(super) blocks: Vec<Block>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Block {
    /// Lines as they are.
    Text(String),
    /// One line, wrapped.
    Paragraph(String),
    /// A line in the style of a table's head.
    Heading(String),
    /// A name and a value per line.
    Fields(Vec<(String, String)>),
    Table(Grid),
}

/// Columns and rows of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grid {
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Vec<String>>,
    /// Widths that columns have at least; may be empty.
    least: Vec<usize>,
}

impl Sheet {
    /// Adds a part below.
    #[must_use]
    pub fn then(mut self, next: impl Into<Self>) -> Self {
        self.blocks.extend(next.into().blocks);
        self
    }

    /// Adds a line below that is wrapped.
    #[must_use]
    pub fn paragraph(mut self, text: impl Into<String>) -> Self {
        self.blocks.push(Block::Paragraph(printable(&text.into()).into_owned()));
        self
    }

    /// Adds an empty line below.
    #[must_use]
    pub fn gap(self) -> Self {
        self.then("\n")
    }

    /// Adds a heading below.
    #[must_use]
    pub fn heading(mut self, text: impl Into<String>) -> Self {
        self.blocks.push(Block::Heading(printable_line(&text.into()).into_owned()));
        self
    }

    /// The lines for `page`, without line breaks.
    #[must_use]
    pub fn lines(&self, page: Page) -> Vec<String> {
        self.blocks.iter().flat_map(|block| block.lines(page)).collect()
    }

    /// The text for `page`; ends with a line break unless empty.
    #[must_use]
    pub fn render(&self, page: Page) -> String {
        self.lines(page).into_iter().map(|line| line + "\n").collect()
    }

    /// One object, a field per line; omits fields with an empty value.
    #[must_use]
    pub(super) fn of_fields(rows: &[(&str, String)]) -> Self {
        let shown = rows.iter().filter(|(_, value)| !value.is_empty());
        let rows = shown.map(|(name, value)| (format!("{name}:"), printable(value).into_owned())).collect();
        Self { blocks: vec![Block::Fields(rows)] }
    }

    /// A table with a line of heads.
    #[must_use]
    pub(super) fn of_table(columns: Vec<Column>, rows: Vec<Vec<String>>) -> Self {
        Self { blocks: vec![Block::Table(Grid::new(columns, rows, Vec::new()))] }
    }

    /// A table whose columns are at least as wide as `widths`, which grow to the widths that it has.
    #[must_use]
    pub(crate) fn continued(columns: Vec<Column>, rows: Vec<Vec<String>>, widths: &mut Vec<usize>) -> Self {
        let mut grid = Grid::new(columns, rows, std::mem::take(widths));
        *widths = grid.widths();
        grid.least.clone_from(widths);
        Self { blocks: vec![Block::Table(grid)] }
    }
}

impl From<String> for Sheet {
    fn from(text: String) -> Self {
        Self { blocks: vec![Block::Text(printable(&text).into_owned())] }
    }
}

impl From<&str> for Sheet {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

/// In full, without colours.
impl fmt::Display for Sheet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(Page::PLAIN))
    }
}

impl Block {
    fn lines(&self, page: Page) -> Vec<String> {
        match self {
            Self::Text(text) => text.lines().map(str::to_owned).collect(),
            Self::Paragraph(text) => match page.width {
                Some(width) => wrap(text, width, INDENT),
                None => vec![text.clone()],
            },
            Self::Heading(text) => vec![paint(text, HEAD, page.coloured)],
            Self::Fields(rows) => field_lines(rows, page),
            Self::Table(grid) => grid.lines(page),
        }
    }
}

fn field_lines(rows: &[(String, String)], page: Page) -> Vec<String> {
    let label_width = rows.iter().map(|(name, _)| width(name)).max().unwrap_or(0);
    let indent = label_width + GAP;
    let mut lines = Vec::new();
    for (name, value) in rows {
        let wrapped = match page.width {
            Some(limit) => wrap(value, limit.saturating_sub(indent).max(MIN_VALUE_WIDTH), ""),
            None => value.lines().map(str::to_owned).collect(),
        };
        for (number, part) in wrapped.iter().enumerate() {
            let label = if number == 0 { name.as_str() } else { "" };
            let style =
                if name.trim_end_matches(':') == STATE_FIELD { tone::of_state(value) } else { Default::default() };
            let blanks = " ".repeat(indent - width(label));
            lines.push(paint(label, HEAD, page.coloured) + &blanks + &paint(part, style, page.coloured));
        }
    }
    lines
}

impl Grid {
    fn new(columns: Vec<Column>, mut rows: Vec<Vec<String>>, least: Vec<usize>) -> Self {
        for cell in rows.iter_mut().flatten() {
            if !is_printable(cell) {
                *cell = printable_line(cell).into_owned();
            }
        }
        Self { columns, rows, least }
    }

    /// The longest text of each column, its head included.
    pub(super) fn widths(&self) -> Vec<usize> {
        let longest = |index: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(index)).map(|cell| width(cell));
            let least = self.least.get(index).copied().unwrap_or(0);
            cells.chain([width(self.columns[index].head), least]).max().unwrap_or(0)
        };
        (0..self.columns.len()).map(longest).collect()
    }

    fn lines(&self, page: Page) -> Vec<String> {
        let grid = match page.width {
            Some(_) => &self.without_empty_messages(),
            None => self,
        };
        let widths = grid.widths();
        let fit = match page.width {
            Some(width) => Fit::within(&grid.columns, &widths, width),
            None => Fit::full(&widths),
        };
        let mut lines = vec![grid.head_line(&fit, page)];
        lines.extend(grid.rows.iter().flat_map(|row| grid.row_lines(row, &fit, page)));
        if fit.hidden > 0 {
            let plural = if fit.hidden == 1 { "" } else { "s" };
            let hint = format!("{} column{plural} hidden; --wide shows all", fit.hidden);
            lines.push(paint(&hint, FAINT, page.coloured));
        }
        lines
    }

    /// A message column without a message only takes room from the others.
    fn without_empty_messages(&self) -> Self {
        let has_text = |index: usize| self.rows.iter().any(|row| row.get(index).is_some_and(|cell| !cell.is_empty()));
        let kept: Vec<usize> = (0..self.columns.len())
            .filter(|index| self.columns[*index].kind != ColumnKind::Message || has_text(*index))
            .collect();
        let cells = |row: &Vec<String>| kept.iter().map(|index| row.get(*index).cloned().unwrap_or_default()).collect();
        Self {
            columns: kept.iter().map(|index| self.columns[*index]).collect(),
            rows: self.rows.iter().map(cells).collect(),
            least: Vec::new(),
        }
    }

    fn head_line(&self, fit: &Fit, page: Page) -> String {
        let cells = fit.shown.iter().map(|shown| self.columns[shown.index].head.to_uppercase()).collect::<Vec<_>>();
        self.line(&cells, fit, |_, text| paint(text, HEAD, page.coloured))
    }

    fn row_lines(&self, row: &[String], fit: &Fit, page: Page) -> Vec<String> {
        let cell = |index: usize| row.get(index).map_or("", String::as_str);
        let wrapped = |shown: &ShownColumn| match self.columns[shown.index].kind {
            ColumnKind::Prose => wrap(cell(shown.index), shown.width, ""),
            _ => vec![cut(cell(shown.index), shown.width).into_owned()],
        };
        let cells: Vec<Vec<String>> = fit.shown.iter().map(wrapped).collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or(1);
        let style = |shown: &ShownColumn, text: &str| match self.columns[shown.index].kind {
            ColumnKind::State => paint(text, tone::of_state(cell(shown.index)), page.coloured),
            _ => text.to_owned(),
        };
        let part = |number: usize| -> Vec<String> {
            cells.iter().map(|lines| lines.get(number).cloned().unwrap_or_default()).collect()
        };
        let mut lines: Vec<String> = (0..height).map(|number| self.line(&part(number), fit, style)).collect();
        if fit.stacked {
            lines.extend(self.texts_below(row, page));
        }
        lines
    }

    /// The texts of a row, each with its head, below the row.
    fn texts_below(&self, row: &[String], page: Page) -> Vec<String> {
        let texts = self.columns.iter().zip(row).filter(|(column, text)| column.is_flexible() && !text.is_empty());
        let limit = page.width.unwrap_or(usize::MAX);
        texts.flat_map(|(column, text)| wrap(&format!("  {}: {text}", column.head), limit, "    ")).collect()
    }

    /// One line of cells. `style` colours a text without its blanks.
    fn line(&self, cells: &[String], fit: &Fit, style: impl Fn(&ShownColumn, &str) -> String) -> String {
        let mut line = String::new();
        for (position, (shown, text)) in fit.shown.iter().zip(cells).enumerate() {
            let text = cut(text, shown.width);
            let blanks = " ".repeat(shown.width - width(&text));
            let styled = style(shown, &text);
            if position > 0 {
                line.push_str(&" ".repeat(GAP));
            }
            line.push_str(&match self.columns[shown.index].kind {
                ColumnKind::Number => blanks + &styled,
                _ => styled + &blanks,
            });
        }
        line.truncate(line.trim_end().len());
        line
    }
}
