//! The types of expressions, and the names that an expression can use.

use crate::reading::fields::Target;

/// The type of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Bool,
    Int,
    Text,
    /// A Kubernetes quantity.
    Quantity,
    /// A semantic version.
    Semver,
    TextMap,
    ListOf(Scalar),
    Record(&'static Record),
    /// A subexpression has an error. Suppresses errors that follow from it.
    Invalid,
}

/// The type of a list item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scalar {
    Bool,
    Int,
    Text,
}

/// A value with named fields.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// As errors call it, with its article.
    pub(crate) noun: &'static str,
    /// What errors call a field.
    pub(crate) field_noun: &'static str,
    pub(crate) fields: &'static [Field],
}

/// A named value: a variable, or a field of a record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) field_type: Type,
    /// What it names, if it is text that must be a known name.
    pub(crate) names: Option<Target>,
    /// Whether each request chooses it: how much, for how long, and how.
    pub(crate) of_demand: bool,
}

/// A name that an expression compares something with.
#[derive(Debug)]
pub(crate) struct NameUse {
    pub(crate) target: Target,
    pub(crate) name: String,
    /// Offset in the expression, in characters from 0.
    pub(crate) at: usize,
    /// Characters to underline.
    pub(crate) width: usize,
}

/// What an expression reads, beside its value.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    /// The names that it compares something with.
    pub(crate) names: Vec<NameUse>,
    /// Whether it reads what each request chooses.
    pub(crate) demand: bool,
}

/// What a kind of expressions can use.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    /// Such an expression, as errors call it.
    pub(crate) noun: &'static str,
    /// Its variables.
    pub(crate) variables: &'static [Field],
    /// A valid expression.
    pub(crate) example: &'static str,
    /// The remedy for an expression that is too long or too deep.
    pub(crate) shorten: &'static str,
}

impl Field {
    pub(crate) const fn new(name: &'static str, field_type: Type) -> Self {
        Self { name, field_type, names: None, of_demand: false }
    }

    /// What each request chooses.
    pub(crate) const fn of_demand(name: &'static str, field_type: Type) -> Self {
        Self { name, field_type, names: None, of_demand: true }
    }

    /// The same text, which names something known.
    pub(crate) const fn that_names(mut self, target: Target) -> Self {
        self.names = Some(target);
        self
    }

    /// Text that names a document or a cluster.
    pub(crate) const fn naming(name: &'static str, target: Target) -> Self {
        Self { name, field_type: Type::Text, names: Some(target), of_demand: false }
    }
}

impl Record {
    pub(crate) fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.fields.iter().map(|field| field.name).collect()
    }
}

impl Type {
    /// As errors call it.
    pub(super) const fn noun(self) -> &'static str {
        match self {
            Self::Bool => "a condition",
            Self::Int => "a number",
            Self::Text => "text",
            Self::Quantity => "a quantity",
            Self::Semver => "a version",
            Self::TextMap => "a map of texts",
            Self::ListOf(_) => "a list",
            Self::Record(record) => record.noun,
            Self::Invalid => "unknown",
        }
    }

    /// The type as a list item's, if it can be one.
    pub(super) const fn scalar(self) -> Option<Scalar> {
        match self {
            Self::Bool => Some(Scalar::Bool),
            Self::Int => Some(Scalar::Int),
            Self::Text => Some(Scalar::Text),
            Self::Quantity | Self::Semver | Self::TextMap | Self::ListOf(_) | Self::Record(_) | Self::Invalid => None,
        }
    }

    /// Whether `==` compares two values of this type.
    pub(super) const fn has_equality(self) -> bool {
        match self {
            Self::Bool | Self::Int | Self::Text | Self::Quantity | Self::Semver | Self::ListOf(_) => true,
            Self::TextMap | Self::Record(_) | Self::Invalid => false,
        }
    }
}

impl Scalar {
    pub(super) const fn as_type(self) -> Type {
        match self {
            Self::Bool => Type::Bool,
            Self::Int => Type::Int,
            Self::Text => Type::Text,
        }
    }
}
