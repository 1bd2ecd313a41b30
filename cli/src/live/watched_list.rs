//! `--watch` of lists: repaints the terminal on each change, or prints the rows that changed.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::IsTerminal as _;
use std::time::Duration;

use clap::Args;

use super::changes::{ChangeSource, Changes};
use super::screen::{Key, Screen};
use crate::clock::now_ms;
use crate::failure::Failure;
use crate::output::{Answer as _, Format, Sheet, write_stdout};
use crate::session::Session;
use crate::views::{List, Row};

/// Ages on the screen are renewed this often.
const REPAINT_INTERVAL: Duration = Duration::from_secs(1);

/// `--watch` of a list.
#[derive(Debug, Args)]
pub struct WatchArgs {
    /// Follow the list: repaint it on each change (q quits); in a pipe, print the rows that changed
    #[arg(short, long)]
    watch: bool,
}

impl WatchArgs {
    /// Prints the list that `read` returns, once or at each change.
    ///
    /// # Errors
    /// [`Failure`] of the first read, or of a later one that a retry cannot help; or if the output cannot be written.
    pub(crate) async fn show<T, F>(
        &self,
        session: &Session,
        source: ChangeSource,
        read: impl Fn() -> F,
    ) -> Result<(), Failure>
    where
        T: Row + Clone + PartialEq,
        F: Future<Output = Result<List<T>, Failure>>,
    {
        let list = read().await?;
        if !self.watch {
            return session.print(&list);
        }
        let changes = Changes::new(session.channel()?, source);
        if session.format == Format::Table && std::io::stdout().is_terminal() {
            repaint(session, changes, read, list).await
        } else {
            print_changes(session, changes, read, list).await
        }
    }
}

async fn repaint<T, F>(
    session: &Session,
    mut changes: Changes,
    read: impl Fn() -> F,
    mut list: List<T>,
) -> Result<(), Failure>
where
    T: Row,
    F: Future<Output = Result<List<T>, Failure>>,
{
    let mut trouble: Option<Failure> = None;
    let mut screen = Screen::open()?;
    'read: loop {
        {
            let change = changes.after(list.revision);
            tokio::pin!(change);
            loop {
                screen.draw(&sheet(&list, trouble.as_ref()).lines(session.page()), "q quits, arrows scroll")?;
                tokio::select! {
                    () = &mut change => break,
                    key = screen.key() => if key? == Key::Quit { break 'read },
                    () = tokio::time::sleep(REPAINT_INTERVAL) => {}
                }
            }
        }
        match changes.judge(read().await)? {
            Ok(newer) => (list, trouble) = (newer, None),
            Err(failure) => trouble = Some(failure),
        }
    }
    drop(screen);
    // The last state stays on the terminal.
    write_stdout(&sheet(&list, None).render(session.page()))
}

fn sheet<T: Row>(list: &List<T>, trouble: Option<&Failure>) -> Sheet {
    let table = list.table(now_ms());
    match trouble {
        Some(failure) => table.gap().paragraph(format!("not up to date: {}", failure.reason)),
        None => table,
    }
}

async fn print_changes<T, F>(
    session: &Session,
    mut changes: Changes,
    read: impl Fn() -> F,
    mut list: List<T>,
) -> Result<(), Failure>
where
    T: Row + Clone + PartialEq,
    F: Future<Output = Result<List<T>, Failure>>,
{
    let mut printed = PrintedRows { items: BTreeMap::new(), widths: Vec::new() };
    loop {
        write_stdout(&printed.text(session.format, &list, now_ms())?)?;
        changes.after(list.revision).await;
        if let Ok(newer) = changes.judge(read().await)? {
            list = newer;
        }
    }
}

/// The rows as they were last printed.
struct PrintedRows<T> {
    items: BTreeMap<String, T>,
    /// Widths of the columns so far: later lines stay below the head.
    widths: Vec<usize>,
}

impl<T: Row + Clone + PartialEq> PrintedRows<T> {
    /// The lines for the objects that are new or differ.
    fn text(&mut self, format: Format, list: &List<T>, now_ms: u64) -> Result<String, Failure> {
        let changed: Vec<&T> = list.items.iter().filter(|item| self.items.get(item.key()) != Some(*item)).collect();
        let text = match format {
            Format::Table | Format::Markdown => {
                let rows: Vec<Vec<String>> = changed.iter().flat_map(|item| item.rows(now_ms)).collect();
                self.table(rows)
            }
            Format::Json | Format::Yaml => {
                changed.iter().map(|item| format.one_of_many(item)).collect::<Result<String, Failure>>()?
            }
        };
        self.items = list.items.iter().map(|item| (item.key().to_owned(), item.clone())).collect();
        Ok(text)
    }

    fn table(&mut self, rows: Vec<Vec<String>>) -> String {
        if rows.is_empty() {
            return String::new();
        }
        let first = self.widths.is_empty();
        let sheet = Sheet::continued(T::HEADS.to_vec(), rows, &mut self.widths);
        let text = sheet.to_string();
        if first { text } else { text.split_once('\n').map_or_else(String::new, |(_, rows)| rows.to_owned()) }
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    use super::*;
    use crate::output::Column;

    #[derive(Clone, PartialEq, Serialize)]
    struct Thing(&'static str, u32);

    impl Row for Thing {
        const HEADS: &'static [Column] = &[Column::text("thing"), Column::number("count")];
        const NONE: &'static str = "no things";

        fn key(&self) -> &str {
            self.0
        }

        fn rows(&self, _now_ms: u64) -> Vec<Vec<String>> {
            vec![vec![self.0.to_owned(), self.1.to_string()]]
        }
    }

    fn texts(format: Format) -> Vec<String> {
        let mut printed = PrintedRows { items: BTreeMap::new(), widths: Vec::new() };
        let lists = [vec![Thing("first", 1), Thing("second", 2)], vec![Thing("first", 1), Thing("second", 30)], vec![]];
        let mut text = |items| printed.text(format, &List { items, revision: 1 }, 0).expect("serialises");
        lists.map(&mut text).into()
    }

    #[test]
    fn only_changed_rows_are_printed_under_the_same_heads() {
        assert_eq!(texts(Format::Table), ["THING   COUNT\nfirst       1\nsecond      2\n", "second     30\n", ""]);
    }

    #[test]
    fn scripts_get_one_object_a_line() {
        assert_eq!(texts(Format::Json), ["[\"first\",1]\n[\"second\",2]\n", "[\"second\",30]\n", ""]);
    }
}
