//! What solvers look at: some rows of the stage, its wrong elements, and the values that may be in their place.

use super::super::work::Meter;
use super::{At, Law, Row};
use crate::capture::Step;
use crate::verdict::{Evidence, Parameters, RowAt, right};
use qdiff_engine::model::{Axis, Node, Role, StageId};
use qdiff_engine::ops::Tensor;
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

/// Rows of each kind, wrong and right, that are looked at.
const ROWS: usize = 64;

/// Wrong elements that parameters are fitted on.
const FITTED: usize = 512;

/// Wrong elements that a law must give before it is tested further.
const GLANCE: usize = 8;

/// The lines of each expert, in the order of tokens.
pub(super) type Lists = Rc<HashMap<usize, Vec<usize>>>;

/// One origin with what surrounds it.
pub(super) struct Scene<'a> {
    pub(super) e: &'a Evidence<'a>,
    meter: &'a Meter,
    /// Rows of the evidence, the wrong ones first.
    pub(super) rows: Vec<usize>,
    /// All other rows.
    pub(super) others: Vec<usize>,
    /// Wrong elements that parameters may be fitted on: of every other wrong row, or of every other column where one
    /// row alone is wrong.
    pub(super) fit: Vec<At>,
    fitted: BTreeSet<usize>,
    by_column: bool,
    part: Part,
    /// Stages that this one is an input of, or of an input of theirs.
    after: BTreeSet<StageId>,
    /// The only elements of a token's vector that are needed at the moment.
    glance: RefCell<Option<Vec<usize>>>,
    tensors: RefCell<Tensors>,
    vectors: RefCell<HashMap<String, Option<Rc<Vec<f32>>>>>,
    /// The lines of each expert, by step.
    pub(super) lists: RefCell<HashMap<usize, Option<Lists>>>,
}

/// So many of them at most, as far apart as each other.
pub(super) fn evenly<T: Copy>(all: Vec<T>, most: usize) -> Vec<T> {
    match all.len() {
        n if n <= most => all,
        n => (0..most).map(|i| all[i * n / most]).collect(),
    }
}

/// Which elements of a stage are looked at; the others are not.
#[derive(Clone, Debug)]
pub(super) enum Part {
    All,
    /// Those of these columns of a token's vector.
    Columns(BTreeSet<usize>),
    /// Those at these positions.
    Positions(BTreeSet<usize>),
}

impl Part {
    fn has(&self, e: &Evidence<'_>, row: &RowAt, i: usize) -> bool {
        match self {
            Self::All => true,
            Self::Positions(some) => some.contains(&row.place.position),
            Self::Columns(some) => {
                let shape = e.given[row.step].as_ref().map_or(&[][..], |t| &t.shape);
                some.contains(&(Layout::of(e.node).token(shape, row.range.start).1 + i))
            }
        }
    }

    /// The wrong elements of a row that are looked at.
    fn wrong(&self, e: &Evidence<'_>, row: &RowAt) -> Vec<usize> {
        let (got, want, bound) = e.row(row);
        (0..got.len()).filter(|&i| !right(got[i], want[i], bound[i]) && self.has(e, row, i)).collect()
    }
}

/// Stages as they were given, by step; nothing for those that were not captured.
type Tensors = HashMap<(usize, StageId), Option<Rc<Tensor<f32>>>>;

/// How a tensor falls into the vectors of tokens: elements before and after the axis that counts them.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    axis: usize,
}

impl Layout {
    pub(super) fn of(node: &Node) -> Self {
        // A cache counts its rows on the first axis.
        Self { axis: node.token_axis().unwrap_or(0) }
    }

    /// Tokens, elements after their axis, and elements of a token.
    pub(super) fn extents(self, shape: &[usize]) -> (usize, usize, usize) {
        let tokens = shape.get(self.axis).copied().unwrap_or(1);
        let inner: usize = shape.get(self.axis + 1..).unwrap_or(&[]).iter().product();
        let outer: usize = shape.get(..self.axis).unwrap_or(&[]).iter().product();
        (tokens, inner, inner * outer)
    }

    /// The flat index of element `j` of token `t`.
    pub(super) fn at(self, shape: &[usize], t: usize, j: usize) -> usize {
        let (tokens, inner, _) = self.extents(shape);
        (j / inner * tokens + t) * inner + j % inner
    }

    /// The token of a flat index, and the element's index in its vector.
    pub(super) fn token(self, shape: &[usize], at: usize) -> (usize, usize) {
        let (tokens, inner, _) = self.extents(shape);
        let (outer, rest) = (at / (tokens * inner), at % (tokens * inner));
        (rest / inner, outer * inner + rest % inner)
    }
}

fn followers(e: &Evidence<'_>) -> BTreeSet<StageId> {
    let nodes = &e.oracle.graph.nodes;
    let mut after = BTreeSet::from([e.node.id]);
    for node in nodes {
        if node.inputs.iter().any(|&i| after.contains(&nodes[i].id)) {
            after.insert(node.id);
        }
    }
    after.remove(&e.node.id);
    after
}

impl<'a> Scene<'a> {
    /// `None` where there is no wrong element that is a number, or the extent itself is wrong.
    pub(super) fn new(e: &'a Evidence<'a>, meter: &'a Meter) -> Option<Self> {
        Self::within(e, meter, Part::All)
    }

    /// The same of a part of its elements.
    pub(super) fn within(e: &'a Evidence<'a>, meter: &'a Meter, part: Part) -> Option<Self> {
        let finite = |scene: &Self, &(r, i): &At| scene.e.row(&scene.e.rows[r]).0[i].is_finite();
        let scene = e.misshapen.is_empty().then(|| Self::of_part(e, meter, part))?;
        (!scene.fit.is_empty() && scene.fit.iter().all(|at| finite(&scene, at))).then_some(scene)
    }

    /// The same, for any wrong elements.
    pub(super) fn of(e: &'a Evidence<'a>, meter: &'a Meter) -> Self {
        Self::of_part(e, meter, Part::All)
    }

    fn of_part(e: &'a Evidence<'a>, meter: &'a Meter, part: Part) -> Self {
        let is_wrong = |r: usize| !part.wrong(e, &e.rows[r]).is_empty();
        let all = 0..e.rows.len();
        let (bad, good): (Vec<usize>, Vec<usize>) = all.partition(|&r| e.rows[r].bad && is_wrong(r));
        // Neighbours tell a condition: right rows are thinned only as far as must be.
        let (bad, good) = (evenly(bad, ROWS), evenly(good, ROWS));
        let looked_at: BTreeSet<usize> = bad.iter().chain(&good).copied().collect();
        let by_column = bad.len() < 2;
        let fitted: BTreeSet<usize> = bad.iter().copied().step_by(2).collect();
        let mut scene = Self {
            e,
            meter,
            rows: bad.iter().chain(&good).copied().collect(),
            others: (0..e.rows.len()).filter(|r| !looked_at.contains(r)).collect(),
            fit: Vec::new(),
            fitted,
            by_column,
            part,
            after: followers(e),
            glance: RefCell::default(),
            tensors: RefCell::default(),
            vectors: RefCell::default(),
            lists: RefCell::default(),
        };
        let mut fit: Vec<At> = Vec::new();
        for &r in &bad {
            let wrong = scene.part.wrong(e, &e.rows[r]).into_iter();
            fit.extend(wrong.filter(|&i| scene.fitted(r, i)).map(|i| (r, i)));
        }
        scene.fit = evenly(fit, FITTED);
        scene
    }

    /// Whether parameters may have been fitted on this element.
    pub(super) fn fitted(&self, row: usize, index: usize) -> bool {
        if self.by_column { index.is_multiple_of(2) } else { self.fitted.contains(&row) }
    }

    /// What `law` says of a few wrong elements of the first row; of the others it may say nothing, which takes less time.
    pub(super) fn glance(&self, law: &Law<'_>) -> Option<Row> {
        let row = &self.e.rows[self.rows[0]];
        let from = self.token(row).1;
        let wrong = self.wrong_of(row).into_iter();
        self.glance.replace(Some(wrong.map(|i| from + i).take(GLANCE).collect()));
        let told = (law.row)(row);
        self.glance.replace(None);
        told
    }

    /// Whether this element of a token's vector is needed.
    pub(super) fn asks(&self, element: usize) -> bool {
        let within = |some: &Vec<usize>| some.last() >= Some(&element) && some.contains(&element);
        self.glance.borrow().as_ref().is_none_or(within)
    }

    /// Whether a bad row has wrong elements, and is not only off as a whole.
    pub(super) fn wrong_in(&self, row: usize) -> bool {
        self.e.rows[row].bad && !self.wrong_of(&self.e.rows[row]).is_empty()
    }

    /// The wrong elements of a row.
    pub(super) fn wrong_of(&self, row: &RowAt) -> Vec<usize> {
        self.part.wrong(self.e, row)
    }

    /// Whether an element of a row is looked at.
    pub(super) fn looks_at(&self, row: &RowAt, i: usize) -> bool {
        self.part.has(self.e, row, i)
    }

    /// What counts the work.
    pub(super) fn meter(&self) -> &'a Meter {
        self.meter
    }

    /// Counts so many multiply-adds.
    pub(super) fn count(&self, work: usize) {
        self.meter.count(work as u64);
    }

    /// Whether the work is used up.
    pub(super) fn over(&self) -> bool {
        self.meter.over()
    }

    /// The model's tensors as the runner says that it holds them.
    pub(super) fn weights(&self) -> Parameters<'a> {
        self.e.parameters()
    }

    pub(super) fn node(&self) -> &'a Node {
        self.e.node
    }

    pub(super) fn layout(&self) -> Layout {
        Layout::of(self.e.node)
    }

    /// A stage as the subject gave it in a step.
    pub(super) fn tensor(&self, step: usize, id: StageId) -> Option<Rc<Tensor<f32>>> {
        let mut tensors = self.tensors.borrow_mut();
        let read = || self.e.side.capture.steps.get(step)?.get(id).map(Cow::into_owned).map(Rc::new);
        tensors.entry((step, id)).or_insert_with(read).clone()
    }

    /// Operand `i` of the stage in a step.
    pub(super) fn operand(&self, step: usize, i: usize) -> Option<Rc<Tensor<f32>>> {
        let node = &self.e.oracle.graph.nodes[*self.node().inputs.get(i)?];
        self.tensor(step, node.id)
    }

    /// The shape of the given values of a step.
    pub(super) fn shape(&self, step: usize) -> &[usize] {
        self.e.given[step].as_ref().map_or(&[], |t| &t.shape)
    }

    /// The row of tokens that a row belongs to, and where it begins in the token's vector.
    pub(super) fn token(&self, row: &RowAt) -> (usize, usize) {
        self.layout().token(self.shape(row.step), row.range.start)
    }

    /// The number of a row of tokens in its part, and how many tokens the part has: some rows of it may be all that is here.
    pub(super) fn number(&self, step: usize, token: usize) -> (usize, usize) {
        let step = &self.e.side.capture.steps[step];
        if token < step.rows() { (step.offset(token), step.tokens.len()) } else { (token, step.tokens.len()) }
    }

    /// The row of tokens with that number in the part, if it is here.
    pub(super) fn numbered(&self, step: usize, number: usize) -> Option<usize> {
        let step = &self.e.side.capture.steps[step];
        match &step.kept {
            Some(kept) => kept.binary_search(&number).ok(),
            None => Some(number).filter(|number| *number < step.tokens.len()),
        }
    }

    /// Positions of the prompt: the first one that is decoded.
    pub(super) fn prompt(&self) -> usize {
        let steps = self.e.side.capture.steps.iter().filter(|step| step.index == 0);
        steps.map(Step::keys).max().unwrap_or(0)
    }

    /// The first position of the part that a position is in.
    pub(super) fn first_of_part(&self) -> impl Fn(usize) -> usize + Clone + 'static {
        let firsts: Vec<usize> = self.e.side.capture.steps.iter().map(|step| step.first).collect();
        move |position| firsts.iter().copied().filter(|first| *first <= position).max().unwrap_or(position)
    }

    /// The element: given value, right value, and bound.
    pub(super) fn element(&self, (r, i): At) -> (f64, f64, f32) {
        let (got, want, bound) = self.e.row(&self.e.rows[r]);
        (f64::from(got[i]), want[i], bound[i])
    }

    /// Elements of a token's vector; those of pairs of tokens have no fixed number.
    pub(super) fn width(&self) -> Option<usize> {
        let axes = self.node().shape.iter().filter(|a| !matches!(a, Axis::Tokens));
        let axes = axes.skip_while(|a| matches!(a, Axis::Keys) && self.node().has_state());
        axes.map(|a| if let Axis::Fixed(n) = a { Some(*n) } else { None }).product()
    }

    /// Whether the elements of a row are keys.
    pub(super) fn of_pairs(&self) -> bool {
        let node = self.node();
        node.token_axis().is_some() && node.shape.last() == Some(&Axis::Keys)
    }

    /// Whether a stage is made of this one: its values come from this stage's values, and explain nothing.
    pub(super) fn follows(&self, id: StageId) -> bool {
        self.after.contains(&id)
    }

    /// Tensors of the same step whose tokens have vectors as long: possible values, or addends. Those of this layer
    /// first, then the stage in other layers and those of the layers beside it.
    pub(super) fn alike(&self) -> Vec<StageId> {
        let (graph, node, Some(width)) = (&self.e.oracle.graph, self.node(), self.width()) else {
            return Vec::new();
        };
        let near = |n: &Node| match (n.id.layer, node.id.layer) {
            (Some(a), Some(b)) => a.abs_diff(b),
            _ => 0,
        };
        let wide = |n: &Node| {
            let axes = n.shape.iter().filter_map(|a| if let Axis::Fixed(n) = a { Some(*n) } else { None });
            n.token_axis() == Some(0) && !n.shape.contains(&Axis::Keys) && axes.product::<usize>() == width
        };
        let kin = |n: &&Node| {
            n.id != node.id && !self.follows(n.id) && wide(n) && (near(n) <= 1 || n.id.name == node.id.name)
        };
        let mut all: Vec<&Node> = graph.nodes.iter().filter(kin).collect();
        let is_input = |n: &Node| node.inputs.iter().any(|&i| graph.nodes[i].id == n.id);
        all.sort_by_key(|n| (!is_input(n), near(n)));
        all.into_iter().map(|n| n.id).collect()
    }

    /// Vectors of so many elements among the model's weights, by name.
    pub(super) fn vectors(&self, width: usize) -> Vec<(String, Vec<f32>)> {
        let weights = self.e.oracle.graph.weights();
        let near = |name: &str| {
            let layer = self.node().id.layer.map(|l| format!("blk.{l}."));
            !name.starts_with("blk.") || layer.is_some_and(|l| name.starts_with(&l))
        };
        let vectors = weights.iter().filter(|w| w.extent == [width]);
        let mut named: Vec<&str> = vectors.map(|w| w.name.as_str()).collect();
        named.sort_by_key(|name| !near(name));
        named.into_iter().take(64).map(|name| (name.to_owned(), self.vector(name, width))).collect()
    }

    /// Those that are as long as a token's.
    pub(super) fn vectors_of_rows(&self) -> Vec<(String, Vec<f32>)> {
        self.width().map_or_else(Vec::new, |width| self.vectors(width))
    }

    /// A vector of the model, by name.
    pub(super) fn shared_vector(&self, name: &str) -> Option<Rc<Vec<f32>>> {
        let read = || {
            let weight = self.e.oracle.graph.weights().into_iter().find(|w| w.name == name && w.extent.len() == 1)?;
            Some(Rc::new(self.vector(name, weight.extent[0])))
        };
        self.vectors.borrow_mut().entry(name.to_owned()).or_insert_with(read).clone()
    }

    pub(super) fn vector(&self, name: &str, width: usize) -> Vec<f32> {
        use qdiff_engine::model::WeightSource as _;
        let mut values = vec![0f32; width];
        self.weights().rows(name, 0, &mut values);
        values
    }

    /// Whether the rows of a token are its chosen experts, and not its heads.
    pub(super) fn of_experts(&self) -> bool {
        matches!(self.node().role, Role::Gate | Role::Up | Role::FfnHidden | Role::FfnOutput)
    }

    /// Elements of one head in a token's vector, where it is made of heads.
    pub(super) fn head(&self) -> Option<usize> {
        let heads = crate::verdict::of_heads(self.node()) || self.node().role == Role::Query;
        let d = self.e.oracle.graph.config.head_dim;
        (heads && self.width().is_some_and(|w| w > d && w.is_multiple_of(d))).then_some(d)
    }

    /// A row of exact values.
    pub(super) fn exact(value: Vec<f64>) -> Row {
        let bound = vec![0.0; value.len()];
        Row { value, bound }
    }

    /// A row of values with the bounds that the stage has there.
    pub(super) fn bounded(&self, row: &RowAt, value: Vec<f64>) -> Row {
        Row { value, bound: self.e.row(row).2.to_vec() }
    }
}
