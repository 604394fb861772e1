import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

/**
 * Runs statements in this process, each select as a job on a cluster within it, so that one JVM serves many.
 *
 * <p>Standard input has a statement in Base64 on each line; standard output gets a line of JSON for each.
 */
public final class flink {
    private static final ObjectMapper JSON = new ObjectMapper();
    /** Of Flink's SQL client; a table environment does not know it. */
    private static final Pattern SET = Pattern.compile("SET\\s+'([^']+)'\\s*=\\s*'([^']*)'");

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // where the log goes, whatever its settings are
        TableEnvironment tables = TableEnvironment.create(EnvironmentSettings.newInstance().inBatchMode().build());
        tables.getConfig().set("parallelism.default", "1");
        BufferedReader statements = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = statements.readLine(); line != null; line = statements.readLine()) {
            String sql = new String(Base64.getDecoder().decode(line), StandardCharsets.UTF_8);
            answers.println(JSON.writeValueAsString(answered(tables, sql)));
            answers.flush();
        }
    }

    private static Map<String, Object> answered(TableEnvironment tables, String sql) {
        Matcher setting = SET.matcher(sql);
        if (setting.matches()) {
            tables.getConfig().set(setting.group(1), setting.group(2));
            return Map.of("columns", List.of(), "rows", List.of());
        }
        try {
            TableResult result = tables.executeSql(sql);
            List<List<Object>> rows = new ArrayList<>();
            try (CloseableIterator<Row> found = result.collect()) {
                found.forEachRemaining(row -> rows.add(values(row)));
            }
            return Map.of("columns", result.getResolvedSchema().getColumnNames(), "rows", rows);
        } catch (Exception error) {
            return Map.of("error", causes(error));
        }
    }

    private static List<Object> values(Row row) {
        List<Object> values = new ArrayList<>();
        for (int i = 0; i < row.getArity(); i++) {
            Object value = row.getField(i);
            boolean isJson = value == null || value instanceof Boolean || value instanceof Integer || value instanceof Long;
            values.add(isJson ? value : value.toString());
        }
        return values;
    }

    private static String causes(Throwable error) {
        StringBuilder text = new StringBuilder();
        for (Throwable one = error; one != null; one = one.getCause()) {
            text.append(one).append('\n');
        }
        return text.toString();
    }
}
