/* The input of bindgen, which no source includes. */
#pragma once
#include "layer/gather.h"
#include "layer/layer.h"
#include "library.h"
