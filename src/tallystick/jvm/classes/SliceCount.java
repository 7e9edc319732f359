package tallystick;

import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.execution.CoalesceExec;
import org.apache.spark.sql.execution.ColumnarRule;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.python.MapInArrowExec;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * Lets every epoch of a query have its own number of slices, where the query itself is planned with one; and the same
 * slices when it is done again ({@link SourceOrder}).
 *
 * <p>Spark plans each epoch anew. The last step of a query of ours is the one that writes, and where nobody else has
 * said how many tasks do that, the step below it takes partitions together. How many there are to be in the next epoch
 * stands in the setting {@code tallystick.slices} of the query's session; without it the plan stays as it is. See
 * spark/slicing.py.
 *
 * <p>For {@code spark.sql.extensions}: sessions on one machine have it.
 */
public final class SliceCount extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
  private static final String SLICES = "tallystick.slices";

  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    extensions.injectColumnar(
        new AbstractFunction1<SparkSession, ColumnarRule>() {
          @Override
          public ColumnarRule apply(SparkSession session) {
            return new BeforeColumns();
          }
        });
    return BoxedUnit.UNIT;
  }

  /** One of the places where Spark lets a physical plan be changed: the one that streaming queries pass, too. */
  private static final class BeforeColumns extends ColumnarRule {
    @Override
    public Rule<SparkPlan> preColumnarTransitions() {
      return new Counted();
    }
  }

  private static final class Counted extends Rule<SparkPlan> {
    @Override
    public SparkPlan apply(SparkPlan plan) {
      return plan instanceof MapInArrowExec ? counted(SourceOrder.inOrder(plan)) : plan;
    }

    private SparkPlan counted(SparkPlan plan) {
      String wanted = conf().getConfString(SLICES, "");
      if (wanted.isEmpty()) {
        return plan;
      }
      SparkPlan below = ((MapInArrowExec) plan).child();
      if (!(below instanceof CoalesceExec)) {
        return plan;
      }
      CoalesceExec taken = (CoalesceExec) below;
      SparkPlan counted = new CoalesceExec(Integer.parseInt(wanted), taken.child());
      Seq<SparkPlan> children = CollectionConverters.asScala(java.util.List.of(counted)).toSeq();
      return plan.withNewChildren(children);
    }
  }
}
