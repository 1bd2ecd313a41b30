//! Tables of the store.

use std::io;
use std::path::Path;

use comity_audit::{Entry, Hash, SealedRecord, Subtrees};
use redb::{Database, ReadOnlyTable, ReadableDatabase as _, ReadableTable as _, Table, TableDefinition};

use super::another_history;

/// Lines by number.
const RECORDS: TableDefinition<'_, u64, &str> = TableDefinition::new("records");
/// Roots of perfect subtrees, by level and number within the level; those of level 0 are the hashes of records.
const SUBTREES: TableDefinition<'_, (u8, u64), &[u8; Hash::BYTES]> = TableDefinition::new("subtrees");
/// Missing records: number of the first, number after the last, and hash of the last.
const GAPS: TableDefinition<'_, u64, (u64, &[u8; Hash::BYTES])> = TableDefinition::new("gaps");

/// Missing records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    /// Number of the first.
    pub(crate) start: u64,
    /// Number after the last.
    pub(crate) end: u64,
    /// Hash of the last.
    pub(crate) last: Hash,
}

/// A change of the store.
pub(super) enum Write {
    Record(SealedRecord),
    Restored { size: u64, last: Hash },
}

/// Makes the tables, and returns the number of the next record.
pub(super) fn prepare(database: &Database) -> Result<u64, redb::Error> {
    let transaction = database.begin_write()?;
    let next = {
        transaction.open_table(SUBTREES)?;
        let last = transaction.open_table(RECORDS)?.last()?.map_or(0, |(index, _)| index.value() + 1);
        let gap = transaction.open_table(GAPS)?.last()?.map_or(0, |(_, gap)| gap.value().0);
        last.max(gap)
    };
    transaction.commit()?;
    Ok(next)
}

/// The open tables of a change.
struct Tables<'t> {
    records: Table<'t, u64, &'static str>,
    subtrees: Table<'t, (u8, u64), &'static [u8; Hash::BYTES]>,
    gaps: Table<'t, u64, (u64, &'static [u8; Hash::BYTES])>,
}

/// Makes changes in order, all of them or none; `next` is the number of the next record. Returns that after them.
pub(super) fn write(database: &Database, path: &Path, mut next: u64, writes: &[Write]) -> io::Result<u64> {
    let fail = |error: redb::Error| match error {
        redb::Error::Io(error) => error,
        error => io::Error::other(format!("{}: {error}", path.display())),
    };
    let mut transaction = database.begin_write().map_err(|error| fail(error.into()))?;
    // A start after a crash need not read the whole file.
    transaction.set_quick_repair(true);
    {
        let open = || -> Result<Tables<'_>, redb::Error> {
            Ok(Tables {
                records: transaction.open_table(RECORDS)?,
                subtrees: transaction.open_table(SUBTREES)?,
                gaps: transaction.open_table(GAPS)?,
            })
        };
        let mut tables = open().map_err(fail)?;
        for write in writes {
            let (index, made) = match write {
                Write::Record(record) => (Some(record.index), record.hash),
                Write::Restored { size, last } => (size.checked_sub(1), *last),
            };
            let Some(index) = index else { continue };
            if index < next {
                let stored = tables.subtree(0, index).map_err(fail)?;
                if let Some(stored) = stored.filter(|stored| *stored != made) {
                    return Err(io::Error::other(another_history(path, index, stored, made)));
                }
                continue;
            }
            match write {
                Write::Record(record) => {
                    if index > next {
                        let previous = previous_of(&record.line)?;
                        tables.add_gap(&Gap { start: next, end: index, last: previous }).map_err(fail)?;
                    }
                    tables.add(index, record.hash, &record.line).map_err(fail)?;
                }
                Write::Restored { size, last } => {
                    tables.add_gap(&Gap { start: next, end: *size, last: *last }).map_err(fail)?;
                }
            }
            next = index + 1;
        }
    }
    transaction.commit().map_err(|error| fail(error.into()))?;
    Ok(next)
}

impl Tables<'_> {
    fn subtree(&self, level: u8, index: u64) -> Result<Option<Hash>, redb::Error> {
        Ok(self.subtrees.get((level, index))?.map(|hash| Hash::of_bytes(*hash.value())))
    }

    fn add_gap(&mut self, gap: &Gap) -> Result<(), redb::Error> {
        self.gaps.insert(gap.start, (gap.end, gap.last.as_bytes()))?;
        Ok(())
    }

    /// Adds a record, and the subtrees that it completes.
    fn add(&mut self, index: u64, hash: Hash, line: &str) -> Result<(), redb::Error> {
        self.records.insert(index, line)?;
        let (mut level, mut index, mut hash) = (0, index, hash);
        loop {
            self.subtrees.insert((level, index), hash.as_bytes())?;
            let Some(other) = self.subtree(level, index ^ 1)? else { return Ok(()) };
            hash = if index & 1 == 1 { Hash::of_node(&other, &hash) } else { Hash::of_node(&hash, &other) };
            (level, index) = (level + 1, index >> 1);
        }
    }
}

fn previous_of(line: &str) -> io::Result<Hash> {
    match Entry::parse(line) {
        Ok(Entry::Record(record, _)) => Ok(record.previous),
        Ok(Entry::Withheld { index, .. }) => Err(io::Error::other(format!("record {index} has no content"))),
        Err(error) => Err(io::Error::other(error)),
    }
}

/// Up to `limit` records of `from..until`.
pub(super) fn read(database: &Database, from: u64, until: u64, limit: usize) -> Result<Vec<SealedRecord>, redb::Error> {
    let transaction = database.begin_read()?;
    let records = transaction.open_table(RECORDS)?;
    let mut found = Vec::new();
    for row in records.range(from..until.max(from))?.take(limit) {
        let (index, line) = row?;
        let line = line.value().to_owned();
        found.push(SealedRecord { index: index.value(), hash: Hash::of_leaf(line.as_bytes()), line });
    }
    Ok(found)
}

/// All gaps, by number.
pub(super) fn gaps(database: &Database) -> Result<Vec<Gap>, redb::Error> {
    let transaction = database.begin_read()?;
    let gaps = transaction.open_table(GAPS)?;
    let mut found = Vec::new();
    for row in gaps.iter()? {
        let (start, gap) = row?;
        let (end, last) = gap.value();
        found.push(Gap { start: start.value(), end, last: Hash::of_bytes(*last) });
    }
    Ok(found)
}

/// Fills the end of a gap with lines, in order. The hash of the record after the gap proves them.
pub(super) fn fill(database: &Database, gap: &Gap, lines: &[String]) -> io::Result<()> {
    let wrong = |index: u64| {
        io::Error::other(format!("record {index} is not the one that record {} names", index.saturating_add(1)))
    };
    let (mut index, mut wanted) = (gap.end, gap.last);
    let mut checked = Vec::with_capacity(lines.len());
    for line in lines.iter().rev() {
        let Some(before) = index.checked_sub(1).filter(|before| *before >= gap.start) else {
            return Err(io::Error::other(format!("there are more records than the gap from {} has", gap.start)));
        };
        index = before;
        match Entry::parse(line) {
            Ok(Entry::Record(record, sealed)) if sealed.hash == wanted && record.index == index => {
                wanted = record.previous;
                checked.push(sealed);
            }
            _ => return Err(wrong(index)),
        }
    }
    let fail = |error: redb::Error| io::Error::other(error);
    let transaction = database.begin_write().map_err(|error| fail(error.into()))?;
    {
        let fill = || -> Result<bool, redb::Error> {
            let mut tables = Tables {
                records: transaction.open_table(RECORDS)?,
                subtrees: transaction.open_table(SUBTREES)?,
                gaps: transaction.open_table(GAPS)?,
            };
            // Another task may have filled it meanwhile.
            let is_this =
                tables.gaps.get(gap.start)?.is_some_and(|held| held.value() == (gap.end, gap.last.as_bytes()));
            if !is_this {
                return Ok(true);
            }
            if index == gap.start {
                let before = match index.checked_sub(1) {
                    Some(before) => tables.subtree(0, before)?,
                    None => Some(Hash::default()),
                };
                if before != Some(wanted) {
                    return Ok(false);
                }
                tables.gaps.remove(gap.start)?;
            } else {
                tables.add_gap(&Gap { start: gap.start, end: index, last: wanted })?;
            }
            for record in &checked {
                tables.add(record.index, record.hash, &record.line)?;
            }
            Ok(true)
        };
        if !fill().map_err(fail)? {
            return Err(wrong(index.saturating_sub(1)));
        }
    }
    transaction.commit().map_err(|error| fail(error.into()))
}

/// Deletes the records from `size` on.
pub(super) fn cut(database: &Database, size: u64) -> Result<(), redb::Error> {
    prepare(database)?;
    let transaction = database.begin_write()?;
    {
        transaction.open_table(RECORDS)?.retain(|index, _| index < size)?;
        transaction.open_table(SUBTREES)?.retain(|(level, index), _| {
            index.checked_add(1).and_then(|end| end.checked_shl(u32::from(level))).is_some_and(|end| end <= size)
        })?;
        let mut gaps = transaction.open_table(GAPS)?;
        gaps.retain(|_, (end, _)| end <= size)?;
    }
    transaction.commit()?;
    Ok(())
}

/// The nodes of the tree as of one moment.
pub(crate) struct StoredTree {
    subtrees: ReadOnlyTable<(u8, u64), &'static [u8; Hash::BYTES]>,
}

impl Subtrees for StoredTree {
    type Error = redb::Error;

    fn subtree(&self, level: u8, index: u64) -> Result<Option<Hash>, redb::Error> {
        Ok(self.subtrees.get((level, index))?.map(|hash| Hash::of_bytes(*hash.value())))
    }
}

/// Reads nodes of the tree.
pub(crate) fn read_tree<T>(
    database: &Database,
    read: impl FnOnce(&StoredTree) -> Result<T, redb::Error>,
) -> Result<T, redb::Error> {
    let transaction = database.begin_read()?;
    read(&StoredTree { subtrees: transaction.open_table(SUBTREES)? })
}
