//! Source files to a bundle: read every document, then check what holds between them.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest, Sha256};

use crate::bundle::{Bundle, BundleSource, SourceFile};
use crate::documents::{
    Agreement, AgreementSides, Cluster, Document, Federation, GpuClass, Institution, PriorityClass, Quota,
    QuotaSubject, Spec, Tenant,
};
use crate::fields::{Context, Fields, Reference, UserIdUse, shown};
use crate::kind::{API_VERSION, Kind};
use crate::limits::{MAX_BUNDLE_BYTES, MAX_DOCUMENTS, MAX_FILE_BYTES, MAX_FILES};
use crate::place::{Place, Problems};
use crate::problem::{Problem, ProblemCode};
use crate::roles::Roles;
use crate::suggest::did_you_mean;
use crate::yaml::{self, Node, read_documents};
use crate::{cross_check, identifiers};

/// All documents that could be read, before they are checked against each other.
#[derive(Default)]
pub(crate) struct Draft {
    /// Name and place of every document, also of those whose `spec` could not be read.
    pub(crate) declared: BTreeMap<(Kind, String), Place>,
    /// Kinds of which some document's `spec` could not be read, so that what it declares is unknown.
    pub(crate) unreadable: BTreeSet<Kind>,
    pub(crate) federations: Vec<Document<Federation>>,
    pub(crate) institutions: BTreeMap<String, Document<Institution>>,
    pub(crate) clusters: BTreeMap<String, Document<Cluster>>,
    pub(crate) tenants: BTreeMap<String, Document<Tenant>>,
    pub(crate) classes: BTreeMap<String, Document<GpuClass>>,
    pub(crate) quotas: BTreeMap<String, Document<Quota>>,
    pub(crate) agreements: BTreeMap<String, Document<Agreement>>,
    pub(crate) priorities: BTreeMap<String, Document<PriorityClass>>,
    pub(crate) references: Vec<Reference>,
    pub(crate) user_ids: Vec<UserIdUse>,
}

impl Draft {
    /// Remembers a document that is no YAML. Where its kind cannot be told, it may be any.
    fn note_broken(&mut self, kind: Option<&str>, name: Option<(String, Place)>) {
        let kind = Kind::ALL.into_iter().find(|known| Some(known.as_str()) == kind);
        match kind {
            Some(kind) => drop(self.unreadable.insert(kind)),
            None => self.unreadable.extend(Kind::ALL),
        }
        if let (Some(kind), Some((name, place))) = (kind, name) {
            self.declared.entry((kind, name)).or_insert(place);
        }
    }
}

/// Compiles a bundle; see [`Bundle::compile`].
pub(crate) fn compile(mut source: BundleSource) -> Result<Bundle, Vec<Problem>> {
    source.files.sort();
    let (draft, problems) = {
        let mut problems = Problems::new(&source.files);
        check_sizes(&source, &mut problems);
        if problems.is_full() || problems.any() {
            return Err(problems.into_sorted());
        }
        let mut draft = Draft::default();
        let mut count = 0;
        'files: for (index, file) in source.files.iter().enumerate() {
            for document in read_documents(index, &file.text, &mut problems) {
                count += 1;
                if count > MAX_DOCUMENTS {
                    let message = format!("the bundle has more than {MAX_DOCUMENTS} documents");
                    problems.whole(&file.path, ProblemCode::TooLarge, message, "is this the right directory?");
                    break 'files;
                }
                match document {
                    yaml::Document::Read(node) => read_document(&node, &mut draft, &mut problems),
                    yaml::Document::Broken { kind, name } => draft.note_broken(kind.as_deref(), name),
                }
            }
        }
        cross_check::check(&draft, &mut problems);
        (draft, problems.into_sorted())
    };
    if !problems.is_empty() {
        return Err(problems);
    }
    assemble(source, draft)
}

fn check_sizes(source: &BundleSource, problems: &mut Problems<'_>) {
    let files = &source.files;
    if files.len() > MAX_FILES {
        let message = format!("the bundle has {} files; at most {MAX_FILES} are allowed", files.len());
        problems.whole(
            "",
            ProblemCode::TooLarge,
            message,
            "put several documents into one file, with `---` between them",
        );
    }
    let total: usize = files.iter().map(|file| file.text.len()).sum();
    if total > MAX_BUNDLE_BYTES {
        let message = format!("the bundle has {total} bytes; at most {MAX_BUNDLE_BYTES} are allowed");
        problems.whole("", ProblemCode::TooLarge, message, "is this the right directory?");
    }
    if source.commit.as_ref().is_some_and(|commit| commit.len() > 128) {
        problems.whole(
            "",
            ProblemCode::TooLarge,
            "the commit id is longer than 128 bytes",
            "give the hash of the commit",
        );
    }
    for (index, file) in files.iter().enumerate() {
        if file.text.len() > MAX_FILE_BYTES {
            let message = format!("the file has {} bytes; at most {MAX_FILE_BYTES} are allowed", file.text.len());
            problems.whole(&shown(&file.path), ProblemCode::TooLarge, message, "split it");
        }
        if file.path.is_empty() || file.path.len() > 255 || file.path.chars().any(char::is_control) {
            let message = "a file's path is empty, longer than 255 bytes or holds control characters";
            problems.whole(&shown(&file.path), ProblemCode::InvalidName, message, "");
        }
        if index > 0 && files[index - 1].path == file.path {
            problems.whole(&file.path, ProblemCode::DuplicateName, "two files have this path", "");
        }
    }
}

/// Reads one document into the draft.
fn read_document(node: &Node, draft: &mut Draft, problems: &mut Problems<'_>) {
    let Draft { references, user_ids, .. } = draft;
    let mut references_found = std::mem::take(references);
    let mut user_ids_found = std::mem::take(user_ids);
    let mut context = Context {
        problems,
        references: &mut references_found,
        user_ids: &mut user_ids_found,
        places: BTreeMap::new(),
        label: "the document".to_owned(),
    };
    read_in_context(node, draft, &mut context);
    draft.references = references_found;
    draft.user_ids = user_ids_found;
}

fn read_in_context(node: &Node, draft: &mut Draft, context: &mut Context<'_, '_>) {
    let Some(mut fields) = Fields::open(node, "", context) else {
        return;
    };
    if let Some((path, version)) = fields.required("apiVersion", context)
        && let Some(text) = context.scalar(&path, version)
        && text != API_VERSION
    {
        let message = format!("`apiVersion: {}` is not known", shown(text));
        context.problems.at(
            version.place,
            ProblemCode::UnknownApiVersion,
            message,
            format!("write `apiVersion: {API_VERSION}`"),
        );
    }
    let kind = fields.required("kind", context).and_then(|(path, node)| {
        let text = context.scalar(&path, node)?;
        let kind = Kind::ALL.into_iter().find(|kind| kind.as_str() == text);
        if kind.is_none() {
            let message = format!("`kind: {}` is not known", shown(text));
            let remedy = did_you_mean(text, &Kind::ALL.map(Kind::as_str));
            context.problems.at(node.place, ProblemCode::UnknownKind, message, remedy);
        }
        kind
    });
    if let Some(kind) = kind {
        context.label = format!("this {kind}");
    }
    let name = fields.required("metadata", context).and_then(|(path, node)| {
        let mut metadata = Fields::open(node, &path, context)?;
        let name = metadata.required("name", context).and_then(|(path, node)| {
            let text = context.scalar(&path, node)?;
            if let Err(remedy) = identifiers::check_name(text) {
                let message = format!("`{path}: {}` is not a valid name", shown(text));
                context.problems.at(node.place, ProblemCode::InvalidName, message, remedy);
                return None;
            }
            Some((text.to_owned(), node.place))
        });
        metadata.finish(context);
        name
    });
    if let (Some(kind), Some((name, _))) = (kind, &name) {
        context.label = format!("{kind} `{name}`");
    }
    // Without a kind, the fields of `spec` mean nothing; that was reported.
    let spec = match kind {
        Some(_) => fields.required("spec", context),
        None => fields.optional("spec", context),
    };
    fields.finish(context);
    let Some(kind) = kind else { return };
    // From here on, paths are within `spec`.
    context.places.clear();
    let named = name.is_some();
    let (name, place) = name.unwrap_or_else(|| (String::new(), node.place));
    if named {
        if let Some(first) = draft.declared.get(&(kind, name.clone())) {
            let file = context.problems.files().get(first.file).map_or("", |file| file.path.as_str());
            let remedy = format!("the first is in {file}:{}; rename or remove one of them", first.line);
            context.problems.at(
                place,
                ProblemCode::DuplicateName,
                format!("there are two documents {kind} `{name}`"),
                remedy,
            );
        } else {
            draft.declared.insert((kind, name.clone()), place);
        }
    }
    let Some((_, spec)) = spec else {
        draft.unreadable.insert(kind);
        return;
    };
    match kind {
        Kind::Federation => {
            let read = read_spec::<Federation>(spec, name, place, draft, context);
            draft.federations.extend(read);
        }
        Kind::Institution => {
            let read = read_spec(spec, name, place, draft, context);
            keep(&mut draft.institutions, read);
        }
        Kind::Cluster => {
            let read = read_spec(spec, name, place, draft, context);
            keep(&mut draft.clusters, read);
        }
        Kind::Tenant => {
            let read = read_spec(spec, name, place, draft, context);
            keep(&mut draft.tenants, read);
        }
        Kind::GpuClass => {
            let read = read_spec(spec, name, place, draft, context);
            keep(&mut draft.classes, read);
        }
        Kind::Quota => {
            let read = read_spec(spec, name, place, draft, context);
            keep(&mut draft.quotas, read);
        }
        Kind::Agreement => {
            let read = read_spec(spec, name, place, draft, context);
            keep(&mut draft.agreements, read);
        }
        Kind::PriorityClass => {
            let read = read_spec(spec, name, place, draft, context);
            keep(&mut draft.priorities, read);
        }
    }
}

fn read_spec<T: Spec>(
    node: &Node,
    name: String,
    place: Place,
    draft: &mut Draft,
    context: &mut Context<'_, '_>,
) -> Option<Document<T>> {
    let read = Fields::open(node, "", context).and_then(|mut fields| {
        let spec = T::read(&mut fields, context);
        fields.finish(context);
        spec
    });
    if read.is_none() {
        draft.unreadable.insert(T::KIND);
    }
    let places = std::mem::take(&mut context.places);
    read.map(|spec| Document::new(T::KIND, name, place, context.problems.files(), spec, places))
}

fn keep<T>(documents: &mut BTreeMap<String, Document<T>>, read: Option<Document<T>>) {
    if let Some(document) = read {
        documents.entry(document.name.clone()).or_insert(document);
    }
}

/// Builds the bundle and its indexes from a draft without problems.
fn assemble(source: BundleSource, draft: Draft) -> Result<Bundle, Vec<Problem>> {
    let Some(federation) = draft.federations.into_iter().next() else {
        let mut problems = Problems::new(&source.files);
        cross_check::no_federation(&mut problems);
        return Err(problems.into_sorted());
    };
    let owners: BTreeMap<String, String> = draft
        .institutions
        .values()
        .flat_map(|institution| {
            institution.spec.clusters.iter().map(|cluster| (cluster.clone(), institution.name.clone()))
        })
        .collect();
    let mut roles: BTreeMap<String, Roles> = BTreeMap::new();
    for user in &federation.spec.maintainers {
        roles.entry(user.clone()).or_default().federation_admin = true;
    }
    for institution in draft.institutions.values() {
        for user in &institution.spec.operators {
            roles.entry(user.clone()).or_default().institutions_operated.insert(institution.name.clone());
        }
    }
    let mut quotas_of: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for tenant in draft.tenants.values() {
        for (user, role) in &tenant.spec.members {
            roles.entry(user.clone()).or_default().tenants.insert(tenant.name.clone(), *role);
        }
        let quotas = draft.quotas.values().filter(|quota| match &quota.spec.subject {
            QuotaSubject::Tenant(name) => *name == tenant.name,
            QuotaSubject::Institution(name) => *name == tenant.spec.institution,
        });
        quotas_of.insert(tenant.name.clone(), quotas.map(|quota| quota.name.clone()).collect());
    }
    let mut agreements_of: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for agreement in draft.agreements.values() {
        let (AgreementSides::Mutual(borrowers) | AgreementSides::OneWay { borrowers, .. }) = &agreement.spec.sides;
        for borrower in borrowers {
            agreements_of.entry(borrower.clone()).or_default().push(agreement.name.clone());
        }
    }
    let mut ranked: Vec<String> = draft.classes.keys().cloned().collect();
    ranked.sort_by_key(|name| std::cmp::Reverse(draft.classes.get(name).map(|class| class.spec.rank)));
    Ok(Bundle {
        hash: hash(&source.files),
        source,
        federation,
        institutions: draft.institutions,
        clusters: draft.clusters,
        tenants: draft.tenants,
        classes: draft.classes,
        quotas: draft.quotas,
        agreements: draft.agreements,
        priorities: draft.priorities,
        owners,
        roles,
        quotas_of,
        agreements_of,
        ranked,
    })
}

/// The content hash: every length is written before its bytes, so that no two sets of files have one encoding.
fn hash(files: &[SourceFile]) -> String {
    let mut hasher = Sha256::new();
    hasher.update(b"comity-policy-bundle-v1\0");
    for file in files {
        for part in [&file.path, &file.text] {
            hasher.update((part.len() as u64).to_be_bytes());
            hasher.update(part.as_bytes());
        }
    }
    hex::encode(hasher.finalize())
}
