/* The input of bindgen, which no source includes. */
#pragma once
#include "layer/layer.h"
#include "library.h"
