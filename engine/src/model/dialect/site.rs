//! Where an engine has a stage, and how people and the Python package read that.

use crate::model::{Node, Role};
use crate::ops::Op;
use std::fmt;

/// Where an engine has the value of a stage. Modules are named as the layer that has them does, or outside of layers the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// What a module gives.
    Output(&'static str),
    /// One of several things that it gives, from 0 on.
    Part(&'static str, u8),
    /// What it gives at one of its calls, from 0 on.
    Call(&'static str, u8),
    /// What a module is given.
    Input(&'static str),
    /// Columns of what a module gives, which computes several stages at once.
    Columns(&'static str, Columns),
    /// What a function gives, or one of several things.
    Function(&'static str, Option<u8>),
    /// The first product of matrices within a function.
    FirstProduct(&'static str),
    /// What is kept under this name.
    Kept(&'static str),
    /// What the layer gives.
    Layer,
    /// One of the things that the norm after the layer gives: the next layer's first one, or after the last layer the decoder's.
    NextNorm(u8),
    /// A variable in the engine's code.
    Variable(&'static str),
}

/// Columns of a fused product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    /// Of queries, which come first.
    Query,
    /// Of keys, which come next.
    Key,
    /// Of values, which come last.
    Value,
    /// The first half.
    First,
    /// The second half.
    Second,
}

/// A stage in an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Where it is.
    pub site: Site,
    /// What else there is to know: axes in another order, or under which condition it is there.
    pub note: &'static str,
    /// Whether the site is this stage only where the module has a bias, or only where it has none.
    pub bias: Option<bool>,
}

impl Site {
    /// The site as the Python package reads it: what is taken, the module's path, and which part, call or columns.
    pub fn taken(self) -> (&'static str, &'static str, Option<String>) {
        let number = |n: u8| Some(n.to_string());
        match self {
            Self::Output(path) => ("output", path, None),
            Self::Part(path, n) => ("part", path, number(n)),
            Self::Call(path, n) => ("call", path, number(n)),
            Self::Input(path) => ("input", path, None),
            Self::Columns(path, columns) => ("columns", path, Some(format!("\"{}\"", columns.word()))),
            Self::Function(name, n) => ("function", name, n.and_then(number)),
            Self::FirstProduct(name) => ("first_product", name, None),
            Self::Kept(path) => ("kept", path, None),
            Self::Layer => ("layer", "", None),
            Self::NextNorm(n) => ("next_norm", "", number(n)),
            Self::Variable(name) => ("variable", name, None),
        }
    }
}

impl Columns {
    fn word(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Key => "key",
            Self::Value => "value",
            Self::First => "first",
            Self::Second => "second",
        }
    }
}

/// A place with nothing else to know.
pub(super) fn at(site: Site) -> Place {
    Place { site, note: "", bias: None }
}

impl Place {
    /// With axes in another order, or under a condition.
    pub(super) fn noted(self, note: &'static str) -> Self {
        Self { note, ..self }
    }
}

/// For the projections of queries, keys and values, at `site`: with a bias, the stage is what the bias was added to.
pub(super) fn projected(node: &Node, site: Site) -> Place {
    let bias = node.op == Op::Bias;
    Place { site, note: if bias { "" } else { "where it has no bias (Qwen3)" }, bias: Some(bias) }
}

/// Which of the three projections the node is of.
pub(super) fn columns(node: &Node) -> Columns {
    match node.role {
        Role::Query => Columns::Query,
        Role::Key => Columns::Key,
        _ => Columns::Value,
    }
}

impl fmt::Display for Columns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Query => "the columns of the queries",
            Self::Key => "the columns of the keys",
            Self::Value => "the columns of the values",
            Self::First => "its first half of columns",
            Self::Second => "its second half of columns",
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NTH: [&str; 3] = ["first", "second", "third"];
        let module = |path: &'static str| path.rsplit('.').next().unwrap_or(path);
        match self.site {
            Site::Output(path) => write!(f, "`{}`", module(path)),
            Site::Part(path, n) => write!(f, "`{}`, {} output", module(path), NTH[usize::from(n)]),
            Site::Call(path, n) => write!(f, "`{}`, {} call", module(path), NTH[usize::from(n)]),
            Site::Input(path) => write!(f, "input of `{}`", module(path)),
            Site::Columns(path, columns) => write!(f, "`{}`, {columns}", module(path)),
            Site::Function(name, None) => write!(f, "`{name}`"),
            Site::Function(name, Some(n)) => write!(f, "`{name}`, {} output", NTH[usize::from(n)]),
            Site::FirstProduct(name) => write!(f, "`{name}`, its first product"),
            Site::Kept(path) | Site::Variable(path) => write!(f, "`{path}`"),
            Site::Layer => f.write_str("the layer's output"),
            Site::NextNorm(n) => write!(f, "the norm after the layer, {} output", NTH[usize::from(n)]),
        }?;
        match self.note {
            "" => Ok(()),
            note => write!(f, ", {note}"),
        }
    }
}
