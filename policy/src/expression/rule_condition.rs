//! Conditions of rules.

use std::sync::Arc;

use cel::Context;
use serde::Serialize;

use super::compiled_condition::CompiledCondition;
use super::types::{Field, NameUse, Record, Scalar, Type, Vocabulary};
use super::{Expression, ExpressionError, RuleField, RuleValue};
use crate::kind::Kind;
use crate::problem::shorten;
use crate::reading::fields::Target;

static REQUEST: Record = Record {
    noun: "the request",
    field_noun: "field",
    fields: &[
        Field::naming("origin", Target::EnrolledCluster),
        Field::of_demand("gpus", Type::Quantity),
        Field::of_demand("durationSeconds", Type::Int),
        Field::of_demand("delivery", Type::Text),
        Field::of_demand("data", Type::ListOf(Scalar::Text)),
        Field::of_demand("purpose", Type::Text).that_names(Target::Purpose),
    ],
};

static TENANT: Record = Record {
    noun: "the tenant",
    field_noun: "field",
    fields: &[Field::naming("name", Target::Document(Kind::Tenant)), Field::new("weight", Type::Int)],
};

static INSTITUTION: Record = Record {
    noun: "the tenant's institution",
    field_noun: "field",
    fields: &[
        Field::naming("name", Target::Document(Kind::Institution)),
        Field::new("region", Type::Text),
        Field::new("weight", Type::Int),
    ],
};

static DONOR: Record = Record {
    noun: "the donor",
    field_noun: "field",
    fields: &[
        Field::naming("name", Target::Document(Kind::Cluster)),
        Field::naming("institution", Target::Document(Kind::Institution)),
        Field::new("region", Type::Text),
    ],
};

static CLASS: Record = Record {
    noun: "the class",
    field_noun: "field",
    fields: &[
        Field::naming("name", Target::Document(Kind::GpuClass)),
        Field::new("rank", Type::Int),
        Field::new("priceCredits", Type::Quantity),
    ],
};

static LEASE: Record = Record {
    noun: "the lease",
    field_noun: "field",
    fields: &[Field::naming("agreement", Target::Document(Kind::Agreement)), Field::of_demand("gpus", Type::Quantity)],
};

/// The variables of a rule, with `lease` last.
static VARIABLES: [Field; 6] = [
    Field::new("request", Type::Record(&REQUEST)),
    Field::new("tenant", Type::Record(&TENANT)),
    Field::new("institution", Type::Record(&INSTITUTION)),
    Field::new("donor", Type::Record(&DONOR)),
    Field::new("class", Type::Record(&CLASS)),
    Field::new("lease", Type::Record(&LEASE)),
];

/// What `deny`, `require` and `warn` can use.
static CONDITION_VOCABULARY: Vocabulary = vocabulary(&VARIABLES);

/// What `prefer` can use: it orders donors before there is a lease.
static PREFERENCE_VOCABULARY: Vocabulary = vocabulary(VARIABLES.split_at(5).0);

const fn vocabulary(variables: &'static [Field]) -> Vocabulary {
    Vocabulary {
        noun: "condition",
        variables,
        example: "donor.region == institution.region",
        shorten: "split it into several Rules, or use `in [..]`",
    }
}

/// The condition of a rule. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct RuleCondition {
    expression: Expression,
    #[serde(skip)]
    compiled: Arc<CompiledCondition>,
    #[serde(skip)]
    reads_demand: bool,
}

impl RuleCondition {
    /// The text that it was compiled from.
    #[must_use]
    pub fn source(&self) -> &str {
        self.expression.source()
    }

    /// Whether it reads what each request chooses: GPUs, duration, delivery, data or purpose.
    pub(crate) fn reads_demand(&self) -> bool {
        self.reads_demand
    }

    /// Whether it holds for these values; `None` if only [`interpret`](Self::interpret) knows.
    pub(crate) fn holds<'f>(&'f self, value_of: &impl Fn(RuleField) -> RuleValue<'f>) -> Option<bool> {
        self.compiled.holds(value_of)
    }

    /// Whether it holds.
    ///
    /// # Errors
    /// Why it cannot be evaluated, in short.
    pub(crate) fn interpret(&self, context: &Context<'_, '_>) -> Result<bool, String> {
        self.expression.holds(context).map_err(|error| shorten(&error.to_string()))
    }
}

/// Parses and checks a condition of `deny`, `require` or `warn`. A failure has at least one error.
pub(crate) fn parse_condition(source: &str) -> Result<(RuleCondition, Vec<NameUse>), Vec<ExpressionError>> {
    parse(source, &CONDITION_VOCABULARY)
}

/// Parses and checks a condition of `prefer`. A failure has at least one error.
pub(crate) fn parse_preference(source: &str) -> Result<(RuleCondition, Vec<NameUse>), Vec<ExpressionError>> {
    parse(source, &PREFERENCE_VOCABULARY)
}

fn parse(source: &str, vocabulary: &Vocabulary) -> Result<(RuleCondition, Vec<NameUse>), Vec<ExpressionError>> {
    let (expression, reads) = Expression::parse(source, vocabulary)?;
    let compiled = Arc::new(CompiledCondition::of(&expression.tree));
    Ok((RuleCondition { expression, compiled, reads_demand: reads.demand }, reads.names))
}
