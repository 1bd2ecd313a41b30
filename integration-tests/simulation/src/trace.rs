//! Reads traces from CSV files with the columns of Alibaba's cluster-trace-gpu-v2023.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use comity_core::limits::{MAX_AMOUNT, MAX_DEVICES_PER_NODE, MIN_SHARE_MILLI};
use comity_core::packing::{Shape, Task};

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file is missing or is not CSV.
    #[error("cannot read {path}: {}", why(cause))]
    Unreadable {
        /// File.
        path: PathBuf,
        /// Why.
        cause: csv::Error,
    },
    /// The header lacks a required column.
    #[error("{path} has no column `{column}`; its header must name {needed}")]
    MissingColumn {
        /// File.
        path: PathBuf,
        /// The column.
        column: &'static str,
        /// All required columns.
        needed: String,
    },
    /// A value is not a whole number or is out of range.
    #[error("{path}, line {line}: {column} is {value:?}; {remedy}")]
    BadValue {
        /// File.
        path: PathBuf,
        /// Line, from 1.
        line: u64,
        /// Column.
        column: &'static str,
        /// The value.
        value: String,
        /// How to correct it.
        remedy: String,
    },
    /// The header has a column twice.
    #[error("{path}: its header names {column} as columns {first} and {second}; keep one of them")]
    TwiceAColumn {
        /// File.
        path: PathBuf,
        /// The column.
        column: &'static str,
        /// Its first position, from 1.
        first: usize,
        /// Its second position.
        second: usize,
    },
    /// The file has a header but no rows.
    #[error("{path} has a header and no rows; {remedy}")]
    Empty {
        /// File.
        path: PathBuf,
        /// How to correct the file.
        remedy: &'static str,
    },
    /// No row has GPUs.
    #[error("{path}, lines 2 to {last_line}: {column} is 0 in all rows; {remedy}")]
    NoGpus {
        /// File.
        path: PathBuf,
        /// Line of the last row.
        last_line: u64,
        /// The column with the number of GPUs.
        column: &'static str,
        /// How to correct the file.
        remedy: &'static str,
    },
}

/// The nodes of a cluster and the tasks submitted to it.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Nodes by name.
    pub nodes: BTreeMap<String, Shape>,
    /// Tasks in the order of the file.
    pub tasks: Vec<Task>,
}

/// Columns of a file of nodes.
const NODE_COLUMNS: [&str; 5] = ["sn", "cpu_milli", "memory_mib", "gpu", "model"];
/// Columns of a file of pods.
const POD_COLUMNS: [&str; 4] = ["cpu_milli", "memory_mib", "num_gpu", "gpu_milli"];
/// Optional column of a file of pods.
const MODELS_COLUMN: &str = "gpu_spec";
/// Maximum rows of a file.
const MAX_ROWS: u64 = 10_000_000;
/// Maximum devices of a node or task.
const MAX_DEVICES: u64 = MAX_DEVICES_PER_NODE as u64;

impl Trace {
    /// Reads both files.
    ///
    /// # Errors
    /// When a file cannot be read, lacks a column or rows, or has an invalid value.
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
    let mut table = Table::open(path, &NODE_COLUMNS, &[])?;
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
        if row.text("sn").is_empty() || nodes.insert(row.text("sn").to_owned(), shape).is_some() {
            return Err(row.bad("sn", "give each node a name of its own".to_owned()));
        }
    }
    let gpus = nodes.values().map(|shape| u64::from(shape.devices)).sum();
    table.check(gpus, "gpu", "name nodes with GPUs, one a line")?;
    Ok(nodes)
}

fn read_tasks(path: &Path, models: &BTreeMap<String, u32>) -> Result<Vec<Task>, TraceError> {
    let mut table = Table::open(path, &POD_COLUMNS, &[MODELS_COLUMN])?;
    let least = u16::try_from(MIN_SHARE_MILLI).unwrap_or(u16::MAX);
    let mut tasks = Vec::new();
    while let Some(row) = table.next()? {
        let devices = row.small("num_gpu", MAX_DEVICES)?;
        let milli = match row.text("gpu_milli") {
            "" if devices == 0 => 0,
            _ => row.small("gpu_milli", 1_000)?,
        };
        let takes = match devices {
            0 => 0..=0,
            1 => least..=1_000,
            _ => 1_000..=1_000,
        };
        if !takes.contains(&milli) {
            let remedy = match devices {
                0 => "num_gpu is 0, and of no GPU 0 thousandths are taken; write 0, or a num_gpu from 1".to_owned(),
                1 => format!("a task of one GPU takes {least} to 1000 thousandths of it"),
                _ => format!("a task of {devices} GPUs takes 1000 of each"),
            };
            return Err(row.bad("gpu_milli", remedy));
        }
        let cpu_milli = row.number("cpu_milli", MAX_AMOUNT)?;
        let memory_mib = row.number("memory_mib", MAX_AMOUNT)?;
        tasks.push(Task { cpu_milli, memory_mib, devices, milli, kinds: kinds(row.text(MODELS_COLUMN), models) });
    }
    let gpus = tasks.iter().map(|task| u64::from(task.devices)).sum();
    table.check(gpus, "num_gpu", "name tasks that ask for GPUs, one a line")?;
    Ok(tasks)
}

/// The reason of a CSV error and its remedy.
fn why(cause: &csv::Error) -> String {
    let line = |position: &Option<csv::Position>| position.as_ref().map_or(0, csv::Position::line);
    match cause.kind() {
        csv::ErrorKind::Io(error) => format!("{error}; name a CSV file that is there and may be read"),
        csv::ErrorKind::Utf8 { pos, .. } => format!("line {} is not UTF-8; save the file as UTF-8", line(pos)),
        csv::ErrorKind::UnequalLengths { pos, expected_len, len } => format!(
            "line {} has {len} values and the header {expected_len} columns; give each line a value for each column",
            line(pos)
        ),
        _ => cause.to_string(),
    }
}

/// Kinds that a `gpu_spec` such as "T4|P100" allows. A model that no node has becomes a kind that no node has.
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

/// A CSV file being read.
struct Table {
    path: PathBuf,
    header: Vec<String>,
    rows: csv::StringRecordsIntoIter<std::fs::File>,
    read: u64,
    line: u64,
}

/// One row of a file.
struct Row<'a> {
    path: &'a Path,
    header: &'a [String],
    line: u64,
    values: csv::StringRecord,
}

impl Table {
    fn open(path: &Path, needed: &[&'static str], optional: &[&'static str]) -> Result<Self, TraceError> {
        let unreadable = |cause| TraceError::Unreadable { path: path.to_owned(), cause };
        let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_path(path).map_err(unreadable)?;
        let header: Vec<String> = reader.headers().map_err(unreadable)?.iter().map(str::to_owned).collect();
        for column in needed.iter().chain(optional).copied() {
            let mut places = (1..).zip(&header).filter(|(_, name)| *name == column).map(|(place, _)| place);
            let path = path.to_owned();
            match (places.next(), places.next()) {
                (Some(first), Some(second)) => {
                    return Err(TraceError::TwiceAColumn { path, column, first, second });
                }
                (None, _) if needed.contains(&column) => {
                    return Err(TraceError::MissingColumn { path, column, needed: needed.join(", ") });
                }
                _ => {}
            }
        }
        Ok(Self { path: path.to_owned(), header, rows: reader.into_records(), read: 0, line: 1 })
    }

    /// Checks after the last row that the file had rows, and `gpus` GPUs in them.
    fn check(&self, gpus: u64, column: &'static str, remedy: &'static str) -> Result<(), TraceError> {
        let path = self.path.clone();
        match (self.read, gpus) {
            (0, _) => Err(TraceError::Empty { path, remedy }),
            (_, 0) => Err(TraceError::NoGpus { path, last_line: self.line, column, remedy }),
            _ => Ok(()),
        }
    }

    fn next(&mut self) -> Result<Option<Row<'_>>, TraceError> {
        let Some(values) =
            self.rows.next().transpose().map_err(|cause| TraceError::Unreadable { path: self.path.clone(), cause })?
        else {
            return Ok(None);
        };
        self.read += 1;
        self.line = values.position().map_or(self.read + 1, csv::Position::line);
        let row = Row { path: &self.path, header: &self.header, line: self.line, values };
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
