//! Datasets that a request reads.

use std::collections::BTreeSet;

use comity_types::{DataNeed, MAX_DATASETS_PER_REQUEST};

use super::template_gpus::{mib_ceil, positive};
use crate::problem::{ProblemCode, shorten};
use crate::reading::fields::{FieldReader, Fields};
use crate::reading::identifiers;
use crate::reading::yaml::Node;

const DATASET: &str = "^[A-Za-z0-9_./:@-]{1,128}$";

/// Reads `data` of a request.
pub(crate) fn read_data(path: &str, node: &Node, reader: &mut FieldReader<'_, '_>) -> Vec<DataNeed> {
    let mut names = BTreeSet::new();
    let read = reader.list(path, node, |reader, path, node| {
        let mut fields = Fields::open(node, path, reader)?;
        let dataset = fields.required("dataset", reader).and_then(|(path, node)| read_dataset(&path, node, reader));
        let size = fields.required("size", reader).and_then(|(path, node)| positive(&path, node, mib_ceil, reader));
        fields.finish(reader);
        let dataset = dataset?;
        if !names.insert(dataset.clone()) {
            let message = format!("`{dataset}` is listed twice in {}", reader.label);
            reader.problems.at(node.place, ProblemCode::DuplicateName, message, "remove one of them");
        }
        Some(DataNeed { dataset, mib: size? })
    });
    if read.len() > MAX_DATASETS_PER_REQUEST {
        let message = format!("`{path}` of {} has {} datasets", reader.label, read.len());
        let remedy = format!("name the {MAX_DATASETS_PER_REQUEST} largest");
        reader.problems.at(node.place, ProblemCode::TooLarge, message, remedy);
    }
    read
}

fn read_dataset(path: &str, node: &Node, reader: &mut FieldReader<'_, '_>) -> Option<String> {
    let text = reader.scalar_of_form(path, node, DATASET)?;
    if let Err(remedy) = identifiers::check_dataset_name(text) {
        let message = format!("`{path}: {}` of {} is not the name of a dataset", shorten(text), reader.label);
        reader.problems.at(node.place, ProblemCode::InvalidName, message, remedy);
        return None;
    }
    Some(text.to_owned())
}
