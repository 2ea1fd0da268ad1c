//! Dense tensors.

/// Elements that a thread makes at least: fewer are not worth handing out.
pub(super) const AT_ONCE: usize = 1 << 15;

/// A dense row-major tensor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tensor<F> {
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// Elements, the last axis contiguous.
    pub data: Vec<F>,
}

impl<F: Copy + Default> Tensor<F> {
    /// A tensor of zeros.
    pub fn zeros(shape: Vec<usize>) -> Self {
        let len = shape.iter().product();
        Self { shape, data: vec![F::default(); len] }
    }

    /// The first axis: tokens for most stages, cached rows for the cache.
    pub fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(0)
    }

    /// Elements per entry of the first axis.
    pub fn row_len(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// Entry `i` of the first axis.
    pub fn row(&self, i: usize) -> &[F] {
        let n = self.row_len();
        &self.data[i * n..(i + 1) * n]
    }
}

impl<F: Copy> Tensor<F> {
    /// `f` of every element.
    pub fn map<G>(&self, f: impl Fn(F) -> G) -> Tensor<G> {
        Tensor { shape: self.shape.clone(), data: self.data.iter().map(|&v| f(v)).collect() }
    }
}

impl Tensor<f32> {
    /// The same values in f64, exactly.
    pub fn wide(&self) -> Tensor<f64> {
        self.map(f64::from)
    }
}

impl Tensor<f64> {
    /// The nearest values in f32.
    pub fn narrow(&self) -> Tensor<f32> {
        self.map(|v| v as f32)
    }
}
