//! Edits of a bundle by commands: a first bundle, a new cluster, a new member. The result is source text again, so that
//! people can keep it in Git; text that people wrote stays as it is, comments included.

use crate::bundle::Bundle;
use crate::compile::InvalidBundle;
use crate::documents::{AgreementSides, Document, SourceLocation, TenantRole};
use crate::problem::Problem;
use crate::problem::nearest;
use crate::reading::identifiers;
use crate::source::{BundleSource, SourceFile};

mod insert_item;
mod templates;

use insert_item::{FieldPlace, insert_item};

pub use templates::minimal_bundle;

/// The agreement of [`minimal_bundle`]: every institution that [`enrol_cluster`] adds becomes a party.
const OPEN_AGREEMENT: &str = "everyone";

/// Why a bundle was not edited.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// A name or user id is invalid.
    #[error("{field} `{value}` is refused: {remedy}")]
    Name {
        /// `cluster`, `institution`, `tenant` or `user`.
        field: &'static str,
        /// The invalid text.
        value: String,
        /// The rule.
        remedy: String,
    },
    /// The cluster belongs to another institution.
    #[error(
        "cluster `{cluster}` belongs to institution `{institution}` already; to move it, edit the Institution documents \
         and run `comity policy apply`"
    )]
    OtherInstitution {
        /// The cluster.
        cluster: String,
        /// Its institution.
        institution: String,
    },
    /// The tenant does not exist.
    #[error("there is no tenant `{tenant}` in the policy bundle")]
    UnknownTenant {
        /// The tenant.
        tenant: String,
        /// The tenant that was probably meant.
        nearest: Option<String>,
    },
    /// The user has another role in the tenant.
    #[error("`{user}` is a member of tenant `{tenant}` with the role {role} already; change its line by hand")]
    OtherRole {
        /// The user.
        user: String,
        /// The tenant.
        tenant: String,
        /// The role in the bundle.
        role: &'static str,
    },
    /// The text has a form that only a person can edit.
    #[error("cannot edit {file}:{line}: add `{item}` to `{field}` by hand, then run `comity policy apply`")]
    ByHand {
        /// Path of the file within the bundle.
        file: String,
        /// Line of the document.
        line: u32,
        /// The list.
        field: &'static str,
        /// The missing item.
        item: String,
    },
    /// The bundle does not compile, before or after the edit.
    #[error(transparent)]
    Invalid(#[from] InvalidBundle),
}

impl From<Vec<Problem>> for EditError {
    fn from(problems: Vec<Problem>) -> Self {
        InvalidBundle { problems }.into()
    }
}

/// A cluster to add to a bundle.
#[derive(Clone, Copy, Debug)]
pub struct Enrolment<'a> {
    /// The cluster.
    pub cluster: &'a str,
    /// Its institution, which may be new.
    pub institution: &'a str,
    /// SPIFFE id of the user who operates a new institution and administers its tenant.
    pub user: &'a str,
}

/// Adds a cluster, so that it can join, lend all classes and borrow:
///
/// - A new institution gets a tenant of its own name, with the user as admin, and becomes a party of the agreement
///   `everyone` if the bundle has it.
/// - The tenant with the institution's name may send requests from the cluster.
/// - A cluster without terms gets terms that lend all classes to everyone with an agreement.
///
/// Changes nothing that is so already. The result comes from no Git commit.
///
/// # Errors
/// [`EditError`].
pub fn enrol_cluster(source: &BundleSource, enrolment: &Enrolment<'_>) -> Result<BundleSource, EditError> {
    let Enrolment { cluster, institution, user } = *enrolment;
    check_name("cluster", cluster)?;
    check_name("institution", institution)?;
    check_user(user)?;
    let mut editor = Editor::open(source)?;
    match editor.bundle.institution_of_cluster(cluster) {
        Some(owner) if owner != institution => {
            return Err(EditError::OtherInstitution { cluster: cluster.to_owned(), institution: owner.to_owned() });
        }
        _ => {}
    }
    let classes: Vec<String> = editor.bundle.classes.keys().cloned().collect();
    if editor.bundle.institutions.contains_key(institution) {
        editor.list_cluster(institution, cluster)?;
    } else {
        editor.append("institutions", institution, &templates::institution(institution, cluster, user))?;
        if !editor.bundle.tenants.contains_key(institution) {
            editor.append("tenants", institution, &templates::tenant(institution, cluster, user, &classes))?;
        }
        editor.join_open_agreement(institution)?;
    }
    if !editor.bundle.clusters.contains_key(cluster) {
        editor.append("clusters", cluster, &templates::cluster(cluster, institution, &classes))?;
    }
    editor.admit_origin(institution, cluster)?;
    Ok(editor.into_source())
}

/// Adds a user to a tenant. Changes nothing if the user has the role already.
///
/// # Errors
/// [`EditError`].
pub fn add_member(
    source: &BundleSource,
    tenant: &str,
    user: &str,
    role: TenantRole,
) -> Result<BundleSource, EditError> {
    check_user(user)?;
    let mut editor = Editor::open(source)?;
    let Some(document) = editor.bundle.tenants.get(tenant) else {
        let nearest = nearest(tenant, editor.bundle.tenants.keys().map(String::as_str)).map(str::to_owned);
        return Err(EditError::UnknownTenant { tenant: tenant.to_owned(), nearest });
    };
    match document.spec.members.get(user) {
        Some(held) if *held == role => {}
        Some(held) => {
            let (user, tenant) = (user.to_owned(), tenant.to_owned());
            return Err(EditError::OtherRole { user, tenant, role: held.as_str() });
        }
        None => {
            let list = EditedList::of(document, "members");
            let item = format!("{{id: {user}, role: {}}}", role.as_str());
            let is_member = |bundle: &Bundle| bundle.tenants[tenant].spec.members.get(user) == Some(&role);
            editor.add_item(&list, &item, is_member)?;
        }
    }
    Ok(editor.into_source())
}

fn check_name(field: &'static str, value: &str) -> Result<(), EditError> {
    identifiers::check_name(value).map_err(|remedy| EditError::Name { field, value: value.to_owned(), remedy })
}

fn check_user(user: &str) -> Result<(), EditError> {
    let refused = |remedy| EditError::Name { field: "user", value: user.to_owned(), remedy };
    identifiers::parse_user_id(user).map(drop).map_err(refused)
}

/// A list in a document.
struct EditedList {
    location: SourceLocation,
    file: usize,
    field: &'static str,
    place: Option<FieldPlace>,
}

impl EditedList {
    fn of<T>(document: &Document<T>, field: &'static str) -> Self {
        let line_of_first = || {
            let fields = document.places.iter().filter(|(path, _)| !path.contains(['.', '[']));
            fields.map(|(_, place)| place.line).min()
        };
        let place = match document.places.get(field) {
            Some(key) => {
                let first = document.places.get(&format!("{field}[0]"));
                Some(FieldPlace::Present { line: key.line, column: key.column, first_item: first.map(|it| it.line) })
            }
            None => line_of_first().map(|before| FieldPlace::Absent { before }),
        };
        Self { location: document.location.clone(), file: document.place.file, field, place }
    }
}

/// A bundle between edits. It compiles after each of them.
struct Editor {
    bundle: Bundle,
}

impl Editor {
    fn open(source: &BundleSource) -> Result<Self, EditError> {
        Ok(Self { bundle: Bundle::compile(source)? })
    }

    fn into_source(self) -> BundleSource {
        self.bundle.into()
    }

    fn replace_files(&mut self, files: Vec<SourceFile>) -> Result<(), EditError> {
        self.bundle = Bundle::compile(&BundleSource::of_files(files))?;
        Ok(())
    }

    /// Adds a document to the file `FOLDER/NAME.yaml`.
    fn append(&mut self, folder: &str, name: &str, document: &str) -> Result<(), EditError> {
        let path = format!("{folder}/{name}.yaml");
        let mut files = self.bundle.source().files.clone();
        match files.iter_mut().find(|file| file.path == path) {
            Some(file) => file.text = format!("{}\n---\n{document}", file.text.trim_end()),
            None => files.push(SourceFile { path, text: document.to_owned() }),
        }
        self.replace_files(files)
    }

    fn list_cluster(&mut self, institution: &str, cluster: &str) -> Result<(), EditError> {
        let lists = |bundle: &Bundle| bundle.institution_of_cluster(cluster) == Some(institution);
        if lists(&self.bundle) {
            return Ok(());
        }
        let list = EditedList::of(&self.bundle.institutions[institution], "clusters");
        self.add_item(&list, cluster, lists)
    }

    /// Lets the tenant with the institution's name send requests from the cluster.
    fn admit_origin(&mut self, institution: &str, cluster: &str) -> Result<(), EditError> {
        let own = self.bundle.tenants.get(institution).filter(|tenant| tenant.spec.institution == institution);
        let Some(tenant) = own.filter(|tenant| !tenant.spec.clusters.contains(cluster)) else { return Ok(()) };
        let list = EditedList::of(tenant, "clusters");
        let is_origin = |bundle: &Bundle| bundle.tenants[institution].spec.clusters.contains(cluster);
        self.add_item(&list, cluster, is_origin)
    }

    fn join_open_agreement(&mut self, institution: &str) -> Result<(), EditError> {
        let Some(agreement) = self.bundle.agreements.get(OPEN_AGREEMENT) else { return Ok(()) };
        let fields: &[&'static str] = match &agreement.spec.sides {
            AgreementSides::Mutual(_) => &["parties"],
            AgreementSides::OneWay { .. } => &["borrowers", "lenders"],
        };
        for field in fields {
            let list = EditedList::of(&self.bundle.agreements[OPEN_AGREEMENT], field);
            let is_party = |bundle: &Bundle| match &bundle.agreements[OPEN_AGREEMENT].spec.sides {
                AgreementSides::Mutual(parties) => parties.contains(institution),
                AgreementSides::OneWay { borrowers, .. } if *field == "borrowers" => borrowers.contains(institution),
                AgreementSides::OneWay { lenders, .. } => lenders.contains(institution),
            };
            self.add_item(&list, institution, is_party)?;
        }
        Ok(())
    }

    /// Inserts an item, and keeps the edit only if the bundle then says so and has the same documents.
    fn add_item(&mut self, list: &EditedList, item: &str, says_so: impl Fn(&Bundle) -> bool) -> Result<(), EditError> {
        let by_hand = || EditError::ByHand {
            file: list.location.file.clone(),
            line: list.location.line,
            field: list.field,
            item: item.to_owned(),
        };
        let mut files = self.bundle.source().files.clone();
        let file = files.get_mut(list.file).ok_or_else(by_hand)?;
        let place = list.place.as_ref().ok_or_else(by_hand)?;
        file.text = insert_item(&file.text, place, list.field, item).ok_or_else(by_hand)?;
        let edited = Bundle::compile(&BundleSource::of_files(files)).map_err(|_| by_hand())?;
        if !says_so(&edited) || edited.document_count() != self.bundle.document_count() {
            return Err(by_hand());
        }
        self.bundle = edited;
        Ok(())
    }
}
