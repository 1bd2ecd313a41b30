//! What a scenario expects.

use super::given::GivenLease;
use crate::bundle::Bundle;
use crate::documents::DocRef;
use crate::kind::Kind;
use crate::problem::suggest::did_you_mean;
use crate::problem::{ProblemCode, shorten};
use crate::reading::fields::{FieldReader, Fields, Target};
use crate::reading::yaml::Node;

/// Words of `decision`.
const DECISIONS: [(&str, ExpectedDecision); 3] =
    [("placed", ExpectedDecision::Placed), ("waits", ExpectedDecision::Waits), ("denied", ExpectedDecision::Denied)];

/// What must become of a scenario's request, and of the leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// `decision`; `None` without a request.
    pub decision: Option<ExpectedDecision>,
    /// `donor` that serves the request.
    pub donor: Option<String>,
    /// `class` that the lease is charged to.
    pub class: Option<String>,
    /// `agreement` under which the lease is granted.
    pub agreement: Option<String>,
    /// `cites`: documents that allow the lease.
    pub cites: Vec<Citation>,
    /// `reasons`: of the refusal, or of donors. There may be others.
    pub reasons: Vec<ExpectedReason>,
    /// `warnings`: texts, each of which a warning of a rule contains. There may be others.
    pub warnings: Vec<String>,
    /// `reclaims`: exactly these leases get notice; `None` does not check.
    pub reclaims: Option<Vec<ExpectedReclaim>>,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedDecision {
    /// A lease is made at once.
    Placed,
    /// It waits in the queue.
    Waits,
    /// The broker refuses it.
    Denied,
}

impl ExpectedDecision {
    /// The word in files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Placed => "placed",
            Self::Waits => "waits",
            Self::Denied => "denied",
        }
    }
}

/// A reason against the request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpectedReason {
    /// `donor` whose reason it is; `None` for that of the refusal or of any donor.
    pub donor: Option<String>,
    /// `code`.
    pub code: Option<String>,
    /// `message`: text that the reason contains.
    pub message: Option<String>,
    /// `cites`: documents behind it.
    pub cites: Vec<Citation>,
}

/// A lease that gets notice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExpectedReclaim {
    /// `lease`: its name.
    pub lease: String,
    /// `reason`, as in `preempted` or `local-need`; `None` for any.
    pub reason: Option<String>,
}

/// A document, or one of its lines, behind a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Citation {
    /// As written: `KIND NAME` or `KIND NAME FIELD`.
    pub text: String,
    /// The document; its line counts only if `of_field`.
    pub document: DocRef,
    /// Whether a field was named, so that the line must be the field's.
    pub of_field: bool,
}

impl Citation {
    /// Whether a decision that cites `cited`, in the form of [`DocRef`]'s `Display`, cites this.
    #[must_use]
    pub fn is_in(&self, cited: &[String]) -> bool {
        let (full, document) = (self.document.to_string(), format!("{} {} (", self.document.kind, self.document.name));
        cited.iter().any(|cited| if self.of_field { *cited == full } else { cited.starts_with(&document) })
    }
}

impl Expected {
    pub(super) fn read(
        path: &str,
        node: &Node,
        (bundle, leases, has_request): (&Bundle, &[GivenLease], bool),
        reader: &mut FieldReader<'_, '_>,
    ) -> Option<Self> {
        let mut fields = Fields::open(node, path, reader)?;
        let decision = if has_request {
            fields.required("decision", reader).map(|(path, node)| reader.word(&path, node, &DECISIONS))
        } else {
            fields.optional("decision", reader).map(|(path, node)| reader.word(&path, node, &DECISIONS))
        };
        let donor = read_cluster_name("donor", &mut fields, reader);
        let class = fields
            .optional("class", reader)
            .and_then(|(path, node)| reader.reference(&path, node, Target::Document(Kind::GpuClass)));
        let agreement = fields
            .optional("agreement", reader)
            .and_then(|(path, node)| reader.reference(&path, node, Target::Document(Kind::Agreement)));
        let cites = read_citations(&mut fields, bundle, reader);
        let reasons_field = fields.optional("reasons", reader);
        let reasons = reasons_field
            .as_ref()
            .map(|(path, node)| reader.list(path, node, |reader, path, node| read_reason(path, node, bundle, reader)));
        let warnings = fields.optional("warnings", reader);
        let warnings =
            warnings.map(|(path, node)| reader.list(&path, node, |reader, path, node| reader.text(path, node)));
        let reclaims = fields.optional("reclaims", reader).map(|(path, node)| {
            reader.list(&path, node, |reader, path, node| read_reclaim(path, node, leases, reader))
        });
        let place = fields.place();
        fields.finish(reader);
        let label = reader.label.clone();
        let mut contradiction = |message: String, remedy: &str| {
            reader.problems.at(place, ProblemCode::Contradiction, message, remedy);
        };
        let tells_place = donor.is_some() || class.is_some() || agreement.is_some() || !cites.is_empty();
        match decision {
            None if reclaims.is_none() && !has_request => {
                contradiction(format!("{label} has neither a request nor `reclaims`"), "add one of the two");
            }
            Some(_) if !has_request => {
                contradiction(format!("{label} has a `decision`, but no request"), "add `request`, or remove it");
            }
            Some(Some(ExpectedDecision::Waits | ExpectedDecision::Denied)) if tells_place => {
                let remedy = "`donor`, `class`, `agreement` and `cites` are for `placed`; `reasons` has its own `donor` \
                              and `cites`";
                contradiction(format!("{label} describes a lease that is not made"), remedy);
            }
            Some(Some(ExpectedDecision::Denied | ExpectedDecision::Waits)) if reasons_field.is_none() => {
                let remedy = "add `reasons: [{code: …}]`, so that another cause does not pass";
                contradiction(format!("{label} does not say why"), remedy);
            }
            _ => {}
        }
        let mut reclaims = reclaims;
        reclaims.iter_mut().for_each(|it| it.sort());
        Some(Self {
            decision: decision.flatten(),
            donor,
            class,
            agreement,
            cites,
            reasons: reasons.unwrap_or_default(),
            warnings: warnings.unwrap_or_default(),
            reclaims,
        })
    }
}

fn read_cluster_name(name: &'static str, fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> Option<String> {
    fields.optional(name, reader).and_then(|(path, node)| reader.reference(&path, node, Target::EnrolledCluster))
}

fn read_reason(path: &str, node: &Node, bundle: &Bundle, reader: &mut FieldReader<'_, '_>) -> Option<ExpectedReason> {
    let mut fields = Fields::open(node, path, reader)?;
    let donor = read_cluster_name("donor", &mut fields, reader);
    let code = fields.optional("code", reader).and_then(|(path, node)| reader.name(&path, node));
    let message = fields.optional("message", reader).and_then(|(path, node)| reader.text(&path, node));
    let cites = read_citations(&mut fields, bundle, reader);
    fields.finish(reader);
    if code.is_none() && message.is_none() && cites.is_empty() {
        let message = format!("`{path}` of {} says nothing about the reason", reader.label);
        reader.problems.at(node.place, ProblemCode::MissingField, message, "add `code`, `message` or `cites`");
        return None;
    }
    Some(ExpectedReason { donor, code, message, cites })
}

fn read_reclaim(
    path: &str,
    node: &Node,
    leases: &[GivenLease],
    reader: &mut FieldReader<'_, '_>,
) -> Option<ExpectedReclaim> {
    let mut fields = Fields::open(node, path, reader)?;
    let lease = fields.required("lease", reader).and_then(|(path, node)| {
        let name = reader.name(&path, node)?;
        if !leases.iter().any(|lease| lease.name == name) {
            let known: Vec<&str> = leases.iter().map(|lease| lease.name.as_str()).collect();
            let message = format!("there is no lease `{name}` in {}", reader.label);
            reader.problems.at(node.place, ProblemCode::UnknownReference, message, did_you_mean(&name, &known));
            return None;
        }
        Some(name)
    });
    let reason = fields.optional("reason", reader).and_then(|(path, node)| reader.name(&path, node));
    fields.finish(reader);
    Some(ExpectedReclaim { lease: lease?, reason })
}

/// `cites`.
fn read_citations(fields: &mut Fields<'_>, bundle: &Bundle, reader: &mut FieldReader<'_, '_>) -> Vec<Citation> {
    let Some((path, node)) = fields.optional("cites", reader) else {
        return Vec::new();
    };
    reader.list(&path, node, |reader, path, node| read_citation(path, node, bundle, reader))
}

fn read_citation(path: &str, node: &Node, bundle: &Bundle, reader: &mut FieldReader<'_, '_>) -> Option<Citation> {
    let text = reader.text(path, node)?;
    let mut words = text.split(' ');
    let kind = words.next().and_then(|word| Kind::ALL.into_iter().find(|kind| kind.as_str() == word));
    let (name, field, more) = (words.next(), words.next(), words.next());
    let (Some(kind), Some(name), None) = (kind, name, more) else {
        let message = format!("`{path}: {}` of {} names no document", shorten(&text), reader.label);
        let remedy = "write a kind and a name, such as `Quota poly-ml`, and a field if its line counts, such as \
                      `Quota poly-ml maxConcurrentGpus`";
        reader.problems.at(node.place, ProblemCode::InvalidValue, message, remedy);
        return None;
    };
    let names = bundle.names(kind);
    let Some(document) = bundle.cite(kind, name, field) else {
        let (message, remedy) = if names.contains(&name) {
            let field = field.unwrap_or_default();
            let known = bundle.fields_of(kind, name);
            (format!("{kind} `{name}` has no field `{}`", shorten(field)), did_you_mean(field, &known))
        } else {
            (format!("there is no {kind} `{}`", shorten(name)), did_you_mean(name, &names))
        };
        reader.problems.at(node.place, ProblemCode::UnknownReference, message, remedy);
        return None;
    };
    Some(Citation { of_field: field.is_some(), document, text })
}
