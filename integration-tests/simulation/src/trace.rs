//! Traces as CSV files, with the columns of Alibaba's cluster-trace-gpu-v2023.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use comity_core::packing::{Shape, Task};

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file is not there, or not CSV.
    #[error("cannot read {path}: {cause}")]
    Unreadable {
        /// File.
        path: PathBuf,
        /// Why.
        cause: csv::Error,
    },
    /// A column that is needed is not in the header.
    #[error("{path} has no column `{column}`; its header must name {needed}")]
    MissingColumn {
        /// File.
        path: PathBuf,
        /// The column.
        column: &'static str,
        /// All that are needed.
        needed: String,
    },
    /// A value that is no whole number, or out of range.
    #[error("{path}, line {line}: {column} is {value:?}; {remedy}")]
    BadValue {
        /// File.
        path: PathBuf,
        /// Line, from 1.
        line: u64,
        /// Column.
        column: &'static str,
        /// What is there.
        value: String,
        /// What should be.
        remedy: String,
    },
    /// A header alone.
    #[error("{path} has a header and no rows; {remedy}")]
    Empty {
        /// File.
        path: PathBuf,
        /// What to do.
        remedy: &'static str,
    },
}

/// A cluster and the work that was asked of it.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Nodes by name.
    pub nodes: BTreeMap<String, Shape>,
    /// Tasks in the order of the file.
    pub tasks: Vec<Task>,
}

/// Columns of a file of nodes.
const NODE_COLUMNS: [&str; 5] = ["sn", "cpu_milli", "memory_mib", "gpu", "model"];
/// Columns of a file of pods; `gpu_spec` may be there as well.
const POD_COLUMNS: [&str; 4] = ["cpu_milli", "memory_mib", "num_gpu", "gpu_milli"];
/// Most rows that are read of one file.
const MAX_ROWS: u64 = 10_000_000;
/// Most devices of one node or task.
const MAX_DEVICES: u64 = 128;
/// Most CPU or memory of one node or task.
const MAX_AMOUNT: u64 = 1 << 40;

impl Trace {
    /// Reads both files.
    ///
    /// # Errors
    /// When one cannot be read, lacks a column or rows, or holds a value that is none.
    pub fn read(nodes: &Path, pods: &Path) -> Result<Self, TraceError> {
        let mut models = BTreeMap::new();
        let nodes = read_nodes(nodes, &mut models)?;
        let tasks = read_tasks(pods, &models)?;
        Ok(Self { nodes, tasks })
    }

    /// Thousandths of devices of all nodes.
    #[must_use]
    pub fn capacity_milli(&self) -> u64 {
        self.nodes.values().map(|shape| u64::from(shape.devices) * 1_000).sum()
    }
}

fn read_nodes(path: &Path, models: &mut BTreeMap<String, u32>) -> Result<BTreeMap<String, Shape>, TraceError> {
    let mut table = Table::open(path, &NODE_COLUMNS)?;
    let mut nodes = BTreeMap::new();
    while let Some(row) = table.next()? {
        let next = u32::try_from(models.len()).unwrap_or(u32::MAX);
        let kind = *models.entry(row.text("model").to_owned()).or_insert(next);
        let shape = Shape {
            cpu_milli: row.number("cpu_milli", MAX_AMOUNT)?,
            memory_mib: row.number("memory_mib", MAX_AMOUNT)?,
            devices: row.small("gpu", MAX_DEVICES)?,
            kind,
        };
        if nodes.insert(row.text("sn").to_owned(), shape).is_some() {
            return Err(row.bad("sn", "give each node a name of its own".to_owned()));
        }
    }
    if nodes.values().all(|shape| shape.devices == 0) {
        return Err(TraceError::Empty { path: path.to_owned(), remedy: "name nodes with GPUs, one a line" });
    }
    Ok(nodes)
}

fn read_tasks(path: &Path, models: &BTreeMap<String, u32>) -> Result<Vec<Task>, TraceError> {
    let mut table = Table::open(path, &POD_COLUMNS)?;
    let mut tasks = Vec::new();
    while let Some(row) = table.next()? {
        let devices = row.small("num_gpu", MAX_DEVICES)?;
        let milli = if devices == 0 { 0 } else { row.small("gpu_milli", 1_000)? };
        if devices > 0 && milli == 0 || devices > 1 && milli != 1_000 {
            return Err(
                row.bad("gpu_milli", format!("a task of {devices} GPUs takes 1 to 1000 of one or 1000 of each"))
            );
        }
        let cpu_milli = row.number("cpu_milli", MAX_AMOUNT)?;
        let memory_mib = row.number("memory_mib", MAX_AMOUNT)?;
        tasks.push(Task { cpu_milli, memory_mib, devices, milli, kinds: kinds(row.text("gpu_spec"), models) });
    }
    if tasks.iter().all(|task| task.devices == 0) {
        return Err(TraceError::Empty { path: path.to_owned(), remedy: "name tasks that ask for GPUs, one a line" });
    }
    Ok(tasks)
}

/// Kinds that a `gpu_spec` such as "T4|P100" allows; a model that no node has is a kind of no node.
fn kinds(spec: &str, models: &BTreeMap<String, u32>) -> Vec<u32> {
    let mut kinds: Vec<u32> = spec
        .split('|')
        .filter(|model| !model.is_empty())
        .map(|model| models.get(model).copied().unwrap_or(u32::MAX))
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

/// A file being read.
struct Table {
    path: PathBuf,
    header: Vec<String>,
    rows: csv::StringRecordsIntoIter<std::fs::File>,
    read: u64,
}

/// One row of it.
struct Row<'a> {
    path: &'a Path,
    header: &'a [String],
    line: u64,
    values: csv::StringRecord,
}

impl Table {
    fn open(path: &Path, needed: &[&'static str]) -> Result<Self, TraceError> {
        let unreadable = |cause| TraceError::Unreadable { path: path.to_owned(), cause };
        let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_path(path).map_err(unreadable)?;
        let header: Vec<String> = reader.headers().map_err(unreadable)?.iter().map(str::to_owned).collect();
        for column in needed {
            if !header.iter().any(|name| name == column) {
                let (path, needed) = (path.to_owned(), needed.join(", "));
                return Err(TraceError::MissingColumn { path, column, needed });
            }
        }
        Ok(Self { path: path.to_owned(), header, rows: reader.into_records(), read: 0 })
    }

    fn next(&mut self) -> Result<Option<Row<'_>>, TraceError> {
        let Some(values) =
            self.rows.next().transpose().map_err(|cause| TraceError::Unreadable { path: self.path.clone(), cause })?
        else {
            return Ok(None);
        };
        self.read += 1;
        let line = values.position().map_or(self.read + 1, csv::Position::line);
        let row = Row { path: &self.path, header: &self.header, line, values };
        if self.read > MAX_ROWS {
            return Err(row.bad("row", format!("give at most {MAX_ROWS} rows")));
        }
        Ok(Some(row))
    }
}

impl Row<'_> {
    fn text(&self, column: &str) -> &str {
        self.header.iter().position(|name| name == column).and_then(|at| self.values.get(at)).unwrap_or("")
    }

    fn number(&self, column: &'static str, most: u64) -> Result<u64, TraceError> {
        let value = self.text(column).parse().ok().filter(|value| *value <= most);
        value.ok_or_else(|| self.bad(column, format!("write a whole number from 0 to {most}")))
    }

    fn small(&self, column: &'static str, most: u64) -> Result<u16, TraceError> {
        Ok(u16::try_from(self.number(column, most)?).unwrap_or(u16::MAX))
    }

    fn bad(&self, column: &'static str, remedy: String) -> TraceError {
        let (path, value) = (self.path.to_owned(), self.text(column).to_owned());
        TraceError::BadValue { path, line: self.line, column, value, remedy }
    }
}
